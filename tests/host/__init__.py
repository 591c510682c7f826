"""Tests of the host's memory; a machine laid out in a folder is shared between them."""
