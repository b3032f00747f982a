"""Rewards and metrics, one file each. A reward gets strings, never tensors."""
