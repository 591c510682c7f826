"""One suite for every resource; a new one joins with a line in makers.py."""
