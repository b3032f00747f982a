"""Find, read and convert the rows of tasks."""
