"""Tests of weight streaming."""
