"""Tests of the `vramkit` command and of what it is made of."""
