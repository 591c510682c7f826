"""One self-contained HTML page from a document: style and drawings inline, nothing fetched."""

from __future__ import annotations

from html import escape
from pathlib import Path

from vramkit.report import blocks
from vramkit.report.highlight import highlighted_lines
from vramkit.report.html_bar_chart import bar_chart_html
from vramkit.report.html_line_chart import line_chart_html
from vramkit.report.html_memory import bars_html, memory_map_html
from vramkit.report.html_table import table_html
from vramkit.report.html_text import inline
from vramkit.report.html_timeline import timeline_html

STYLES = ("page.css", "timeline.css", "memory.css", "charts.css")


def page(document: blocks.Document) -> str:
    """The whole page as text."""
    style = "\n".join(Path(__file__).with_name(name).read_text(encoding="utf-8") for name in STYLES)
    sections = "".join(
        _section(number, section) for number, section in enumerate(document.sections, 1)
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{escape(document.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n"
        f"{_header(document)}<main>\n{sections}</main>\n</body>\n</html>\n"
    )


def _header(document: blocks.Document) -> str:
    badge = ""
    if document.simulated is not None:
        badge = f'<span class="badge">simulated · {escape(document.simulated)}</span>'
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in document.facts
    )
    contents = "".join(
        f'<li><a href="#chapter-{number}">{escape(section.title)}</a></li>'
        for number, section in enumerate(document.sections, 1)
    )
    return (
        f"<header>\n<h1>{escape(document.title)}{badge}</h1>\n"
        f'<p class="summary">{inline(document.summary)}</p>\n'
        f'<dl class="facts">{facts}</dl>\n<nav><ol>{contents}</ol></nav>\n</header>\n'
    )


def _section(number: int, section: blocks.Section) -> str:
    body = "\n".join(_block(block) for block in section.blocks)
    return (
        f'<section id="chapter-{number}">\n<h2><span class="number">{number}</span>'
        f"{escape(section.title)}</h2>\n{body}\n</section>\n"
    )


def _block(block: blocks.Block) -> str:
    match block:
        case blocks.Text(text):
            return f"<p>{inline(text)}</p>"
        case blocks.Callout(tone, title, text):
            body = f"<p>{inline(text)}</p>" if text else ""
            return f'<div class="callout {tone}"><strong>{inline(title)}</strong>{body}</div>'
        case blocks.Figures(items):
            cells = "".join(
                f'<div class="figure {item.tone}"><b>{escape(item.value)}</b>'
                f"<span>{escape(item.label)}</span></div>"
                for item in items
            )
            return f'<div class="figures">{cells}</div>'
        case blocks.Table():
            return table_html(block)
        case blocks.Code():
            return _code(block)
        case blocks.Timeline():
            return timeline_html(block)
        case blocks.Bars():
            return bars_html(block)
        case blocks.BarChart():
            return bar_chart_html(block)
        case blocks.LineChart():
            return line_chart_html(block)
        case blocks.MemoryMap():
            return memory_map_html(block)
        case blocks.Conflict():
            return _conflict(block)


def _code(block: blocks.Code) -> str:
    lines = []
    for number, line in enumerate(highlighted_lines(block.text, block.language), block.first_line):
        word = block.marked.get(number)
        note = "" if word is None else f'<em class="{block.tone}">{escape(word)}</em>'
        mark = "" if word is None else f" marked {block.tone}"
        lines.append(f'<span class="line{mark}">{line or " "}{note}</span>')
    return (
        f'<figure class="code"><figcaption>{inline(block.title)}</figcaption>'
        f'<pre style="counter-reset: line {block.first_line - 1}">'
        f"<code>{''.join(lines)}</code></pre></figure>"
    )


def _conflict(block: blocks.Conflict) -> str:
    sides = "".join(
        f'<div class="side"><p>{inline(who)}</p>'
        + (f"<code>{escape(where)}</code>" if where else "")
        + "</div>"
        for who, where in block.sides
    )
    return (
        f'<div class="conflict {block.tone}"><strong>{escape(block.title)}</strong>'
        f'<p>{inline(block.what)}</p><div class="sides">{sides}</div>'
        f'<p class="fix"><b>How to fix it</b>{inline(block.fix)}</p></div>'
    )
