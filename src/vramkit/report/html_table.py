"""Tables as HTML, by themselves and behind a drawing that shows the same."""

from __future__ import annotations

import re
from html import escape

from vramkit.report.blocks import Table
from vramkit.report.html_text import inline

PROSE_COLUMNS = 3
"""From so many columns of words on, a phone shows the cells of a row below each other."""

FIGURE = re.compile(r"[\d.,]+ \S{1,5}")
"""With its unit, which stays on its line."""
NO_BREAK = "\u00a0"


def table_html(block: Table) -> str:
    head = any(block.columns)
    prose = head and not block.numeric and len(block.columns) >= PROSE_COLUMNS

    def cell(index: int, text: str, tag: str) -> str:
        attributes = ' class="numeric"' if index in block.numeric else ""
        if FIGURE.fullmatch(text):
            text = text.replace(" ", NO_BREAK)
        if prose and tag == "td" and index and block.columns[index]:
            attributes += f' data-column="{escape(block.columns[index])}"'
        return f"<{tag}{attributes}>{inline(text)}</{tag}>"

    def row(cells: list[str], tag: str) -> str:
        return f"<tr>{''.join(cell(index, text, tag) for index, text in enumerate(cells))}</tr>"

    caption = f"<caption><span>{escape(block.title)}</span></caption>" if block.title else ""
    heads = f"<thead>{row(block.columns, 'th')}</thead>" if head else ""
    body = "".join(row(cells, "td") for cells in block.rows)
    kind = ' class="prose"' if prose else "" if head else ' class="pairs"'
    return f'<div class="wide"><table{kind}>{caption}{heads}<tbody>{body}</tbody></table></div>'


def hidden_table_html(block: Table) -> str:
    """Opened by its reader."""
    return f"<details><summary>As a table</summary>{table_html(block)}</details>"
