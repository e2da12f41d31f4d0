"""Tokens of the library per package, and whether docs/size.md knows of them: python .ci/size.py

A token is one lexical token of Python. Comments, docstrings, blank lines and line ends count
nothing, so that a file does not shrink by joining lines or by saying less.
"""

import ast
import re
import sys
import tokenize
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = ROOT / "src" / "isentrope"
LEDGER = ROOT / "docs" / "size.md"

FREE = 1000
"""Tokens by which the library may grow without a line in the ledger."""

SILENT = {
    *(tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT),
    *(tokenize.ENCODING, tokenize.ENDMARKER),
}


def tokens(path: Path) -> int:
    """Tokens of one file; a bare string that documents an attribute is a docstring too."""
    said = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.Expr(value=ast.Constant(value=str())):
                said.update(range(node.lineno, node.end_lineno + 1))
    with path.open("rb") as file:
        found = tokenize.tokenize(file.readline)
        return sum(t.type not in SILENT and t.start[0] not in said for t in found)


def rooms(root: Path) -> tuple[Counter, Counter]:
    """Tokens and files of every package below `root`; single modules stand together."""
    sizes, files = Counter(), Counter()
    for path in sorted(root.rglob("*.py")):
        first, *rest = path.relative_to(root).parts
        room = first if rest else "(top level)"
        sizes[room] += tokens(path)
        files[room] += 1
    return sizes, files


def recorded(ledger: str) -> int:
    """Tokens in all by the last line of the ledger's first table."""
    lines = re.findall(r"^\| \d{4}-\d\d-\d\d \| ([\d,]+) \|", ledger, re.M)
    return int(lines[-1].replace(",", ""))


def complaint(now: int, before: int) -> str | None:
    """What to do about a library that has grown, if it has."""
    if now <= before + FREE:
        return None
    return (
        f"src has {now:,} tokens, {now - before:,} more than the last line of docs/size.md. "
        "Add a line that says what was bought and what went."
    )


def main() -> str | None:
    sizes, files = rooms(SOURCES)
    for room, size in sizes.most_common():
        print(f"{room:14} {files[room]:4} files {size:8,} tokens")
    print(f"{'all':14} {files.total():4} files {sizes.total():8,} tokens")
    return complaint(sizes.total(), recorded(LEDGER.read_text(encoding="utf-8")))


if __name__ == "__main__":
    sys.exit(main())
