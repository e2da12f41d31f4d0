"""An answer in a notebook: its sentences, and a table below them."""

from collections.abc import Sequence

from markupsafe import Markup

from isentrope.results.answers.blocks import Sentence, Table

_ROW = Markup("<tr>{}</tr>")


def as_html(sentences: Sequence[Sentence], table: Table | None) -> str:
    """Sentences as paragraphs, and a table with all of its columns; everything is escaped."""
    parts = [Markup("<p>{}</p>").format(sentence.text) for sentence in sentences]
    if table is not None:
        titles = _cells("th", [column.title for column in table.columns])
        columns = [table.cells(column) for column in table.columns]
        rows = [_cells("td", cells) for cells in zip(*columns, strict=True)]
        caption = Markup("<caption>{}</caption>").format(table.title)
        body = Markup("").join(_ROW.format(row) for row in rows)
        parts.append(
            Markup("<table>{}<thead>{}</thead><tbody>{}</tbody></table>").format(
                caption, _ROW.format(titles), body
            )
        )
    return str(Markup("\n").join(parts))


def _cells(tag: str, texts: Sequence[str]) -> Markup:
    """The cells of a row."""
    cell = Markup(f"<{tag}>{{}}</{tag}>")
    return Markup("").join(cell.format(text) for text in texts)
