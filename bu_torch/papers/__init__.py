"""All that only the papers need: their estimators of boundary uncertainty, filters of trust, error rates, intervals."""
