"""Datasets, one file each: columns, prompt, references, decoding, metrics."""
