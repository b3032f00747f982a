"""Decode and score, with confidence intervals."""
