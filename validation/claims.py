"""Which numbers of README, proofs and questions are of today's sources?

    python -m validation.claims              # list them; exit 1 where one is stale
    python -m validation.claims --date       # write the date beside every link that needs one
    python -m validation.claims --why        # also list which sources changed, by page
    python -m validation.claims --made docs/results/optimizers.md "pytest tests/update"

A passage is a paragraph, an item, a row, or a whole answer. Its numbers of two digits or more come
from the pages of results that it links to: from the first that has the number. What is on none of
them comes from the test that the passage names, or is dated in its sentence, as in 2026-11-22
(48c070ca). A page says where it comes from in its last lines (`validation.origin`). A claim is

- fresh: the sources of the page's commands are those that they ran with;
- dated: they changed, and the passage has the date of the page, as in `[table](results/price.md) of
  2026-11-28`;
- tested: by a test that the passage names;
- stale: they changed, and the passage does not say so;
- without origin: it has no page, or one that does not say where it comes from.
"""

from __future__ import annotations

import argparse
import re
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tests.docs import figures
from validation.origin import ROOT, Origin, Tree, origins_of, with_origins

CLAIMING = ("README.md", "docs/proofs.md", "docs/questions.md")
RESULTS = "docs/results"
NO_RESULTS = {
    "README.md": {
        "135": "millions of parameters of SmolLM2",
        "3.11": "version of Python",
        "2.0": "of the licence",
        "95": "per cent of an interval",
    },
    "docs/proofs.md": {
        "12": "kinds of optimizers that a test runs",
        "17": "kinds of adapters that a test runs",
        "17,000": "cases of the table, added up",
    },
    "docs/questions.md": {
        "95": "per cent of an interval",
        "40": "steps of the toy's training",
        "135": "millions of parameters of SmolLM2",
    },
}
"""By page: numbers of passages that link to no page of results, and what they are."""
State = Literal["fresh", "dated", "tested", "stale", "without origin"]
OF_NO_PAGE: dict[str, State] = {"tests": "tested", "its sentence": "dated"}
DAY = r"\d{4}-\d\d-\d\d"
_GLUE = "\x00"
_DATED = re.compile(rf"{DAY}\s+\(\w{{8}}\)")
_LINK = re.compile(
    rf"(\]\((?P<target>[^)#\s]+\.md)(?:#[^)]*)?\))(?:\s+of\s+(?P<days>{DAY}(?:\s+to\s+{DAY})?))?"
)
_TEST = re.compile(r"`[^`]*\btests/[^`]*`|\]\([^)]*tests/[^)]*\)")


@dataclass(frozen=True)
class Claim:
    """Numbers of one passage that come from one page, or from tests.

    Attributes:
        place: Page and line.
        numbers: As they are written.
        source: The page of results, "tests", or "its sentence".
        state: Whether they are of today's sources.
        origins: What the page says of itself.
    """

    place: str
    numbers: tuple[str, ...]
    source: str
    state: State
    origins: tuple[Origin, ...] = ()

    def __str__(self) -> str:
        made = "; ".join(f"{x.day} {x.commit} {x.command}" for x in self.origins)
        source = self.source.removeprefix("docs/")
        return f"{self.state:6} {self.place}: {' '.join(self.numbers)} <- {source} {made}".rstrip()


class Claims:
    """The numbers of some pages against the sources as they are.

    Attributes:
        tree: The sources.
    """

    def __init__(self, root: Path = ROOT, pages: Sequence[str] = CLAIMING) -> None:
        self.tree = Tree(root=root)
        self._root = root
        self._pages = pages
        self._fresh: dict[Origin, bool] = {}

    def origins(self, page: str) -> tuple[Origin, ...]:
        """What a page says of itself; nothing if it does not exist."""
        path = self._root / page
        return tuple(origins_of(path.read_text(encoding="utf-8"))) if path.is_file() else ()

    def is_fresh(self, origin: Origin) -> bool:
        """Whether the sources of a command are those that it ran with."""
        if origin not in self._fresh:
            try:
                digest = self.tree.digest(self.tree.sources(origin.command))
            except ValueError:  # its module is gone
                digest = ""
            self._fresh[origin] = digest == origin.digest
        return self._fresh[origin]

    def all(self) -> Iterator[Claim]:
        """Every claim of every page."""
        for page in self._pages:
            text = (self._root / page).read_text(encoding="utf-8")
            end = 0
            for passage in figures.passages(text):
                begin = text.find(passage, end)
                end = begin + len(passage) if begin >= 0 else end
                line = text.count("\n", 0, max(begin, 0)) + 1
                yield from self._of_passage(page, line, passage)

    def _of_passage(self, page: str, line: int, passage: str) -> Iterator[Claim]:
        told = [*dict.fromkeys(figures.telling(passage))]
        linked = [self._target(page, match) for match in _LINK.finditer(passage)]
        sources = [x for x in dict.fromkeys(linked) if x.startswith(RESULTS)]
        names = NO_RESULTS.get(page, {})
        told = [x for x in told if x not in names or (sources and x not in {"95", "135"})]
        texts = {x: figures.values((self._root / x).read_text(encoding="utf-8")) for x in sources}
        place = f"{page}:{line}"
        tested = bool(_TEST.search(passage))
        sentence = "its sentence" if _DATED.search(passage) else "no page"
        first = "tests" if tested else next(iter(sources), sentence)
        by_source: dict[str, list[str]] = {}
        for number in told:
            having = (x for x in sources if figures.is_among(number, texts[x]))
            by_source.setdefault(next(having, first), []).append(number)
        for source, numbers in by_source.items():
            origins = self.origins(source)
            state = OF_NO_PAGE.get(source) or self._state(passage, origins)
            yield Claim(place, tuple(numbers), source, state, origins)

    def _target(self, page: str, match: re.Match[str]) -> str:
        path = (self._root / page).parent / match["target"]
        return Path(path).resolve().relative_to(self._root.resolve()).as_posix()

    def _state(self, passage: str, origins: Sequence[Origin]) -> State:
        if not origins:
            return "without origin"
        if all(self.is_fresh(origin) for origin in origins):
            return "fresh"
        return "dated" if days_of(origins) in " ".join(passage.split()) else "stale"

    def wrong_dates(self) -> list[str]:
        """Links with a date that is not the one of their page."""
        found = []
        for page in self._pages:
            for match in _LINK.finditer((self._root / page).read_text(encoding="utf-8")):
                origins = self.origins(self._target(page, match))
                days = " ".join((match["days"] or "").split())
                if days and days != days_of(origins):
                    found.append(f"{page}: {match['target']} of {days}")
        return found

    def dated(self, page: str) -> str:
        """The text of a page with the days beside each link to results that are not fresh."""

        def with_day(match: re.Match[str]) -> str:
            origins = self.origins(self._target(page, match))
            if not origins or all(self.is_fresh(origin) for origin in origins):
                return match[1]
            return f"{match[1]} of {days_of(origins)}"

        text = (self._root / page).read_text(encoding="utf-8")
        paragraphs = re.split(r"(\n{2,})", text)
        return "".join(_filled(x, _LINK.sub(with_day, x)) for x in paragraphs)


def days_of(origins: Sequence[Origin]) -> str:
    """When a page was made: a day, or the first and the last where it was made in parts."""
    days = sorted({origin.day for origin in origins})
    return " to ".join([*days[:1], *days[1:][-1:]])


def _filled(before: str, after: str) -> str:
    """A paragraph that changed, wrapped anew; rows of tables stay lines."""
    if before == after or after.lstrip().startswith(("|", "```", "#")):
        return after
    items = re.split(r"\n(?=[-*] )", after.rstrip())
    end = after[len(after.rstrip()) :]
    return "\n".join(_wrapped(item) for item in items) + end


def _wrapped(item: str) -> str:
    """At 100 columns; code, lists of numbers in brackets and per cents are not broken."""
    whole = r"(?<=\d)\s(?=%)|(?<=,)\s(?=[^][]*\](?!\())"
    glued = re.sub(whole, _GLUE, " ".join(item.split()))
    glued = re.sub(r"`[^`]{1,95}`", lambda span: span[0].replace(" ", _GLUE), glued)
    indent = "  " if item.startswith(("- ", "* ")) else ""
    lines = textwrap.wrap(
        glued, 100, break_long_words=False, break_on_hyphens=False, subsequent_indent=indent
    )
    return "\n".join(lines).replace(_GLUE, " ")


def changed(tree: Tree, origin: Origin) -> list[str]:
    """Sources of a command that are not as they were at its commit."""
    then = Tree(origin.commit.rstrip("+"))
    paths = tree.sources(origin.command)
    return [
        path
        for path in paths
        if path not in then.files or tree.digest([path]) != then.digest([path])
    ]


def main() -> None:
    """List the claims, write dates, or write where a page comes from."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--date", action="store_true", help="write dates beside links")
    parser.add_argument("--why", action="store_true", help="list which sources changed")
    parser.add_argument("--made", nargs=2, metavar=("PAGE", "COMMAND"), help="write an origin")
    parser.add_argument("--commit", help="of --made, where it is not that of today")
    parser.add_argument("--day", help="of --made, as YYYY-MM-DD")
    options = parser.parse_args()
    if options.made:
        page = Path(options.made[0])
        origin = Tree(options.commit).origin(options.made[1], options.day)
        text = with_origins(page.read_text(encoding="utf-8"), [origin])
        page.write_text(text, encoding="utf-8")
        print(origin)
        return
    claims = Claims()
    if options.date:
        for page in CLAIMING:
            (ROOT / page).write_text(claims.dated(page), encoding="utf-8")
    rows = [*claims.all()]
    print(*rows, sep="\n")
    if options.why:
        for origin in dict.fromkeys(x for row in rows for x in row.origins):
            if not claims.is_fresh(origin):
                print(f"{origin.command}: {', '.join(changed(claims.tree, origin))}")
    counts: Counter[State] = Counter()
    for row in rows:
        counts[row.state] += len(row.numbers)
    print(", ".join(f"{number} {state}" for state, number in counts.most_common()))
    sys.exit(bool(counts["stale"] or counts["without origin"] or claims.wrong_dates()))


if __name__ == "__main__":
    main()
