"""Nearest neighbours, K-means and prototypes."""
