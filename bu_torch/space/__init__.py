"""Where distance is measured: inputs, patches, tokens, layers."""
