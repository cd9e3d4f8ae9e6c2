"""Choosing among checkpoints of a training, in Python or on the command line."""
