"""Earlier estimators of boundary uncertainty, for comparison."""
