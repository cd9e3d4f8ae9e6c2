"""Estimators that fit once and score many networks."""
