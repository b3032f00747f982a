"""Tables and plots of what was measured. Nothing here is written by hand."""
