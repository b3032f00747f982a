"""The mathematics of the method: masks, draws and losses as pure functions on tensors."""
