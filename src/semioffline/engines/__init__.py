"""Where work is done: in this process, or on a Ray cluster. It knows nothing of models and data."""
