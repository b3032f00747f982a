"""Samples to rewards."""
