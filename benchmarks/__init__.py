"""Speed measurements, and the scripts that build this repository's own result pages."""
