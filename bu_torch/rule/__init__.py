"""Rules that score checks, and the decision to stop."""
