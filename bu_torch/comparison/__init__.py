"""Comparison of ways to stop a training, on tables of the user's own."""
