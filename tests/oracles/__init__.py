"""Second versions, one sample at a time, written from the papers; they share no code with the package."""
