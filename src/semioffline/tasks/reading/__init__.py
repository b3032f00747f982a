"""How tasks find, read and shape their rows. No task is here."""
