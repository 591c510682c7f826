"""The host's memory: its limits, what is left of them, and large mappings. Needs no driver."""
