"""Compute the rewards of samples."""
