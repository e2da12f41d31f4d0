"""The commands and snippets that README and docs give: found, not listed by hand."""

import re
import shlex
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
SHELL = {"", "bash", "sh", "shell", "console"}
_FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SPAN = re.compile(r"(?<!`)`([^`\n]+)`(?!`)")
_PROGRAM = re.compile(r"(\S*/)?(isentrope|make|python|python3|torchrun|pip)$")
_PLACEHOLDER = re.compile(r"^\.\.\.$|^[A-Z][A-Z_]*$|^\[.*\]$|[…<>]")


class Command(NamedTuple):
    """A command and the page it is on."""

    page: str
    words: tuple[str, ...]

    @property
    def program(self) -> str:
        return Path(self.words[0]).name

    @property
    def general(self) -> bool:
        """Whether it has a CONFIG or a RUN in the place of a file."""
        return any(_PLACEHOLDER.search(word) for word in self.words[1:])

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"


def blocks(page: Path, *languages: str) -> list[str]:
    """The fenced blocks of a page in these languages."""
    found = _FENCE.findall(page.read_text(encoding="utf-8"))
    return [text for language, text in found if language in languages]


def commands(page: Path) -> list[Command]:
    """Every command of a page, of its blocks and of its running text, in order."""
    lines = [
        re.split(r"\s{2,}(?=[^-\s])", line, maxsplit=1)[0]  # a remark two spaces away
        for block in blocks(page, *SHELL)
        for line in re.sub(r"\\\n\s*", "", block).splitlines()
    ]
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    found = [*lines, *_SPAN.findall(text)]
    return [c for line in found if (c := _command(page, line))]


def _command(page: Path, line: str) -> Command | None:
    try:
        words = shlex.split(line, comments=True)
    except ValueError:  # half a quotation: not a command
        return None
    while words and re.fullmatch(r"[A-Z_]+=\S*", words[0]):
        words = words[1:]
    if len(words) < 2 or not _PROGRAM.match(words[0]):
        return None
    return Command(str(page.relative_to(ROOT)), tuple(words))


def every_command() -> list[Command]:
    """Every command of every page, once a page."""
    return list(dict.fromkeys(c for page in PAGES for c in commands(page)))
