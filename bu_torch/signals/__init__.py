"""Numbers that a check gives: one catalogue entry each."""
