"""vramkit under other frameworks: PyTorch, CuPy, RMM and cuda.core.

One module each, named as the framework; each needs that package and imports it when imported or
called, never before.
"""
