"""Tables, plots and HTML pages of what was measured. Nothing here is written by hand."""
