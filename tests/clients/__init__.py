"""Foreign programs on the simulated GPU, as they are."""
