"""Native places, "symbol+0x12 (/path/lib.so+0xabc)", as source lines where addr2line knows them."""

from __future__ import annotations

import re
import shutil
import subprocess
from collections import defaultdict
from collections.abc import Iterable

_PLACE = re.compile(r"^(?P<symbol>.*?)\s*\((?P<module>/.+)\+0x(?P<offset>[0-9a-f]+)\)$")
_DISCRIMINATOR = re.compile(r" \(discriminator \d+\)$")


class Resolver:
    """Looks all places up at once, one run of addr2line a module; unknown ones stay as they are."""

    def __init__(self, places: Iterable[str]) -> None:
        self._known: dict[str, str] = {}
        tool = shutil.which("addr2line")
        if tool is None:
            return
        modules: defaultdict[str, dict[int, str]] = defaultdict(dict)
        for place in places:
            found = _PLACE.match(place)
            if found:
                modules[found["module"]][int(found["offset"], 16)] = place
        for module, by_offset in modules.items():
            self._look_up(tool, module, by_offset)

    def resolve(self, place: str) -> str:
        return self._known.get(place, place)

    def _look_up(self, tool: str, module: str, by_offset: dict[int, str]) -> None:
        # A return address is one past the call: the byte before it belongs to the call's line.
        addresses = [hex(max(offset - 1, 0)) for offset in by_offset]
        command = [tool, "--functions", "--demangle", "--exe", module, *addresses]
        try:
            answer = subprocess.run(command, capture_output=True, text=True, timeout=30)
        except (OSError, subprocess.TimeoutExpired):
            return
        lines = answer.stdout.splitlines()
        for place, function, line in zip(by_offset.values(), lines[::2], lines[1::2], strict=False):
            if not line.startswith("??"):
                self._known[place] = f"{_DISCRIMINATOR.sub('', line)} in {function}"
