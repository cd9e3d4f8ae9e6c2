"""Spaces in which distance is measured: inputs, patches, tokens, layers."""
