"""One training, from check to check."""
