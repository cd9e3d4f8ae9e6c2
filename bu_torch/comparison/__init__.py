"""Comparison of ways to stop a training, on the user's own tables."""
