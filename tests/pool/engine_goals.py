"""The one switch for what the pool's engine does not reach yet."""

import pytest

from vramkit.driver import OutOfMemoryError

# Remove it, and what it marks, when the engine holds hardly more than is in use.
NOT_YET = pytest.mark.xfail(
    reason="the pool holds more than it needs",
    raises=(AssertionError, OutOfMemoryError),
    strict=False,
)
