"""Weights that are streamed through the card from host memory."""
