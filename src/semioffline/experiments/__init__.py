"""Compare several methods from one initial checkpoint."""
