"""Tools that several rooms share: input checks, reading a network, files, printing, progress."""
