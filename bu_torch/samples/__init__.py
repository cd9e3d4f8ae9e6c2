"""Training samples to measure at: reading, choosing and weighting them."""
