"""vramkit under other frameworks."""
