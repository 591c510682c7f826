"""Advice about memory, from one recorded run."""
