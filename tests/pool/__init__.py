"""Tests of the pool; hand-made layouts are shared between them."""
