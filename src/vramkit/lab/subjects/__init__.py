"""The allocators that take part: ours, the baselines, and those of other libraries."""
