"""The driver API as programs see it: the same cases on NVIDIA's driver and on the simulated GPU."""
