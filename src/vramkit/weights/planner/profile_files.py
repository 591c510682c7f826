"""A profile given as a file, as text that can be read on another machine."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from vramkit.driver.opening import profiles

_EXTENDS = re.compile(r'^(\s*extends\s*=\s*)"([^"]+)"', re.MULTILINE)


class ProfileFiles(msgspec.Struct, frozen=True):
    """The file first, then those that it extends: name and text. None for a profile by name, which
    each machine has."""

    name: str
    files: list[tuple[str, str]] = []

    @contextmanager
    def written(self) -> Iterator[str]:
        """As the simulated GPU takes it. Errors are told without the folder, which is another one
        each time: raises ValueError."""
        if not self.files:
            yield self.name
            return
        with TemporaryDirectory(prefix="vramkit-profile-") as folder:
            for number, (name, text) in enumerate(self.files):
                path = Path(folder, str(number), name)
                path.parent.mkdir()
                path.write_text(text, encoding="utf-8")
            try:
                yield str(Path(folder, "0", self.files[0][0]))
            except ValueError as error:
                text = re.sub(re.escape(folder) + r"/\d+/(\.\./\d+/)?", "", str(error))
                raise type(error)(text) from error


def read_profile(given: str) -> ProfileFiles:
    """Raises ValueError, OSError."""
    if not _is_path(given):
        if given not in profiles():
            raise ValueError(
                f"the profile is {given!r}; it may be one of {', '.join(profiles())}, or a path to "
                "a .toml"
            )
        return ProfileFiles(given)
    numbers: dict[Path, int] = {}
    files: list[tuple[str, str]] = []

    def add(path: Path) -> int:
        path = path.resolve()
        if path in numbers:
            return numbers[path]
        number = numbers[path] = len(files)
        files.append((path.name, ""))
        text = _EXTENDS.sub(lambda match: beside(path, match), path.read_text(encoding="utf-8"))
        files[number] = path.name, text
        return number

    def beside(path: Path, match: re.Match[str]) -> str:
        """Found as the reader of profiles finds it."""
        name = match[2]
        found = path.parent / (name if _is_path(name) else f"{name}.toml")
        if not found.is_file():
            return match[0]
        return f'{match[1]}"../{add(found)}/{found.name}"'

    add(Path(given))
    return ProfileFiles(given, files)


def _is_path(profile: str) -> bool:
    return "/" in profile or profile.endswith(".toml")
