"""Programs run with a library of ours before them."""
