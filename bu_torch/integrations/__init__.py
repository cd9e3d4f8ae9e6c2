"""Training frameworks other than Lightning, one module each; none is imported unless it is asked for by name."""
