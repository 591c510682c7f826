"""What a command has found, as blocks (text, table, timeline), drawn in a terminal or as HTML."""
