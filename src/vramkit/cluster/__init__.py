"""One node of a cluster: which memory its cards announce, and how its programs are shown."""
