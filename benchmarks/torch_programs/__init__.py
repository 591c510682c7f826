"""PyTorch programs with changing shapes: one file each, listed in catalog.py."""
