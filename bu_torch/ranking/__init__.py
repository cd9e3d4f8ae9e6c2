"""Choosing among classifiers that are there already, in Python or on the command line."""
