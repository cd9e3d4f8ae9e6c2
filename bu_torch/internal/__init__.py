"""Tools that several rooms share: input checks, copying and reading a network, random states, output."""
