"""Tests of swapping."""
