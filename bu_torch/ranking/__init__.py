"""Choosing among classifiers that are trained already, in Python or on the command line."""
