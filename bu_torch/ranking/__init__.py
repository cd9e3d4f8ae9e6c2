"""Choosing among classifiers that are there already: ranked, averaged, scored for a search, or on the command line."""
