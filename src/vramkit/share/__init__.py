"""One card shared by several unmodified programs."""
