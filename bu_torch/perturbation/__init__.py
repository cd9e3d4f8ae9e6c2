"""Small moves of samples."""
