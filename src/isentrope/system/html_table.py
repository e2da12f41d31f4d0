"""Sentences and a table as HTML, for the cell of a notebook; everything is escaped."""

from collections.abc import Sequence

from markupsafe import Markup

_ROW = Markup("<tr>{}</tr>")


def html_table(
    sentences: Sequence[str],
    titles: Sequence[str],
    rows: Sequence[Sequence[str]],
    caption: str = "",
) -> str:
    """Sentences as paragraphs, and a table below them.

    Args:
        sentences: What is said.
        titles: Of the columns; no table without any.
        rows: Their cells.
        caption: Of the table.

    Returns:
        Markup.
    """
    parts = [Markup("<p>{}</p>").format(sentence) for sentence in sentences]
    if titles:
        body = Markup("").join(_ROW.format(_cells("td", row)) for row in rows)
        parts.append(
            Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(
                Markup("<caption>{}</caption>").format(caption),
                _ROW.format(_cells("th", titles)),
                body,
            )
        )
    return str(Markup("\n").join(parts))


def _cells(tag: str, texts: Sequence[str]) -> Markup:
    """The cells of a row."""
    cell = Markup(f"<{tag}>{{}}</{tag}>")
    return Markup("").join(cell.format(text) for text in texts)
