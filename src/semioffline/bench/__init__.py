"""What a step costs: every method on one machine, with models of published sizes and texts of the paper's lengths."""
