"""Two programs on one card that holds one of them: what paging, prefetch and swap cost."""

from vramkit.lab.sharing.experiment import SHARING

__all__ = ["SHARING"]
