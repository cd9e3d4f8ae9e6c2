"""Which training samples are looked at, and how often each counts."""
