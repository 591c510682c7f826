"""vramkit under other frameworks: PyTorch, CuPy, RMM and cuda.core; and below Ray and Kubernetes.

One module each, named as the framework; each needs that package and imports it when imported or
called, never before.
"""
