"""Nearest neighbours and K-means."""
