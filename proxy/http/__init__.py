"""The proxy's face: HTTP in, replies out."""
