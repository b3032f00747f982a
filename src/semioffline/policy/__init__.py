"""A Hugging Face model as a policy."""
