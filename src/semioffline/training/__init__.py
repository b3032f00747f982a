"""The trainer, its checkpoints and its log."""
