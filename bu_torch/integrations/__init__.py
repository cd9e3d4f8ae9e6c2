"""Training frameworks beside Lightning, one module each; none is imported unless it is asked for by name."""
