"""The guided run: a list of chapters, each one file, shown in the terminal and kept as a page."""
