"""Several methods from one initial checkpoint, compared."""
