"""Python text as HTML with its comments, strings and keywords marked."""

from __future__ import annotations

import io
import keyword
import tokenize
from html import escape

_CLASSES = {tokenize.COMMENT: "comment", tokenize.STRING: "string", tokenize.NUMBER: "number"}


def highlighted_lines(text: str, language: str) -> list[str]:
    """One piece of HTML a line; another language than Python is only escaped."""
    lines = text.rstrip("\n").split("\n")
    if language != "python":
        return [escape(line) for line in lines]
    marks: list[list[tuple[int, int, str]]] = [[] for _ in lines]
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        name = _CLASSES.get(token.type)
        if token.type == tokenize.NAME and keyword.iskeyword(token.string):
            name = "keyword"
        if name is not None:
            _mark(marks, lines, token, name)
    return [_line(line, spans) for line, spans in zip(lines, marks, strict=True)]


def _mark(
    marks: list[list[tuple[int, int, str]]],
    lines: list[str],
    token: tokenize.TokenInfo,
    name: str,
) -> None:
    """A token over several lines (a docstring) gives each of them its part."""
    (first, start), (last, end) = token.start, token.end
    for number in range(first, last + 1):
        begin = start if number == first else 0
        stop = end if number == last else len(lines[number - 1])
        marks[number - 1].append((begin, stop, name))


def _line(line: str, spans: list[tuple[int, int, str]]) -> str:
    parts, position = [], 0
    for start, end, name in spans:
        parts.append(escape(line[position:start]))
        parts.append(f'<span class="{name}">{escape(line[start:end])}</span>')
        position = end
    parts.append(escape(line[position:]))
    return "".join(parts)
