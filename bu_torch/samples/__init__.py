"""Choice of the training samples to measure at, and their weights."""
