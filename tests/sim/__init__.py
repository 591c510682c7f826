"""The simulated GPU itself: its clock, its checker, and what they promise."""
