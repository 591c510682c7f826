"""Tables as HTML, by themselves and behind a drawing that shows the same."""

from __future__ import annotations

from html import escape

from vramkit.report.blocks import Table
from vramkit.report.html_text import inline


def table_html(block: Table) -> str:
    def row(cells: list[str], tag: str) -> str:
        return "".join(
            f'<{tag} class="numeric">{inline(cell)}</{tag}>'
            if index in block.numeric
            else f"<{tag}>{inline(cell)}</{tag}>"
            for index, cell in enumerate(cells)
        )

    caption = f"<caption>{escape(block.title)}</caption>" if block.title else ""
    head = f"<thead><tr>{row(block.columns, 'th')}</tr></thead>" if any(block.columns) else ""
    body = "".join(f"<tr>{row(cells, 'td')}</tr>" for cells in block.rows)
    pairs = "" if head else ' class="pairs"'
    return f'<div class="wide"><table{pairs}>{caption}{head}<tbody>{body}</tbody></table></div>'


def hidden_table_html(block: Table) -> str:
    """Opened by its reader."""
    return f"<details><summary>As a table</summary>{table_html(block)}</details>"
