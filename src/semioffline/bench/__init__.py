"""Measures the cost of a training step of every method, with models of published sizes and texts of the paper's
lengths."""
