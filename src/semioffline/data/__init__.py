"""Rows to batches; candidates."""
