"""One card shared by several unmodified programs.

`vramkit run -- program` puts a program under it; see docs/sharing.md. A Python program that runs so
can say more than what is seen from outside: `idle()` and `lease()`.
"""

from vramkit.share.cooperation import idle, lease

__all__ = ["idle", "lease"]
