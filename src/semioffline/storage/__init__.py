"""What is kept on disk: files that are written whole, records in JSON, and what other people wrote, checked."""
