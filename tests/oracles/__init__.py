"""Second versions, written from the papers; they share no code with the package."""
