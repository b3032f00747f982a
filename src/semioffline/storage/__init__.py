"""Storage on disk: files that are written completely or not at all, records in JSON, and checked input from other
people."""
