"""Where the numbers of a page come from: its command, its commit, its date, and its sources.

The last lines of a page of results say it, one line per command:

    Made on 2026-11-28 at 76de946a (sources 3f2a9c4b1d0e) by `python -m validation.price`.

The sources of a command are the modules of this repository that its modules import, followed
through every import (those inside functions too), through public names (`ise.NAME`), and through
strings that are the dotted name of a module or the path of a configuration. Their digest is of
their syntax trees without docstrings, so comments, wording and line breaks change nothing.
`write_results` is the only place that writes such a line.
"""

from __future__ import annotations

import ast
import hashlib
import io
import re
import shlex
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("src/isentrope", "validation", "benchmarks", "studies", "tests", "examples", "configs")
STUB = "src/isentrope/__init__.pyi"
_PACKAGES = {"isentrope": "src/isentrope"} | {name: name for name in FOLDERS[1:-1]}
_LINE = re.compile(
    r"^Made on (?P<day>\d{4}-\d\d-\d\d) at (?P<commit>\w+\+?) "
    r"\(sources (?P<digest>\w+)\) by `(?P<command>[^`]+)`\.$",
    re.MULTILINE,
)
_DOTTED = re.compile(r"(?:isentrope|validation|benchmarks|studies|tests|examples)(?:\.\w+)+")
_CONFIGURATION = re.compile(r"configs/[\w.-]+\.yaml")


@dataclass(frozen=True)
class Origin:
    """Where numbers of a page come from.

    Attributes:
        day: On which the command ran, as YYYY-MM-DD.
        commit: Of the sources; with "+" where they were changed and not committed.
        digest: Of the sources.
        command: What ran.
    """

    day: str
    commit: str
    digest: str
    command: str

    def __str__(self) -> str:
        """The line of the page."""
        where = f"Made on {self.day} at {self.commit} (sources {self.digest})"
        return f"{where} by `{self.command}`."


def origins_of(text: str) -> list[Origin]:
    """Those that a page says, in order."""
    return [Origin(**match.groupdict()) for match in _LINE.finditer(text)]


class Tree:
    """The sources as they are now, or as they were at a commit.

    Attributes:
        commit: None for the files as they are.
    """

    def __init__(self, commit: str | None = None, root: Path = ROOT) -> None:
        self.commit = commit
        self._root = root
        self._imports: dict[str, list[str]] = {}
        self._digests: dict[str, str] = {}

    @cached_property
    def files(self) -> dict[str, str]:
        """Text by path, of Python and of configurations."""
        endings = (".py", ".pyi", ".yaml")
        if self.commit is None:
            paths = [path for name in FOLDERS for path in (self._root / name).rglob("*")]
            return {
                path.relative_to(self._root).as_posix(): path.read_text(encoding="utf-8")
                for path in paths
                if path.suffix in endings and path.is_file()
            }
        command = ["git", "archive", self.commit]
        packed = subprocess.run(command, cwd=self._root, capture_output=True, check=True).stdout
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            members = [m for m in archive if m.isfile() and m.name.endswith(endings)]
            chosen = [m for m in members if m.name.startswith(FOLDERS)]
            return {m.name: archive.extractfile(m).read().decode() for m in chosen}  # pyright: ignore[reportOptionalMemberAccess]

    @cached_property
    def public(self) -> dict[str, str]:
        """The module of each public name of isentrope."""
        nodes = ast.parse(self.files.get(STUB, "")).body
        imports = [node for node in nodes if isinstance(node, ast.ImportFrom)]
        return {alias.name: node.module or "" for node in imports for alias in node.names}

    def path(self, module: str) -> str | None:
        """The file of a module of this repository; None for any other name."""
        first, _, rest = module.partition(".")
        if first not in _PACKAGES:
            return None
        base = "/".join([_PACKAGES[first], *rest.split(".")]) if rest else _PACKAGES[first]
        choices = (f"{base}.py", f"{base}/__init__.py")
        return next((path for path in choices if path in self.files), None)

    def imports(self, path: str) -> list[str]:
        """The files that a module imports or names."""
        if path not in self._imports:
            found = self._named_by(path) if path.endswith(".py") else []
            self._imports[path] = [*dict.fromkeys(found)]
        return self._imports[path]

    def _named_by(self, path: str) -> list[str]:
        names: list[str] = []
        files: list[str] = []
        for node in ast.walk(ast.parse(self.files[path])):
            if isinstance(node, ast.Import):
                names += [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                base = _absolute(path, node)
                names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
                if base == "isentrope":
                    names += [self.public.get(alias.name, "") for alias in node.names]
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                if node.value.id in {"ise", "isentrope"}:
                    names += [self.public.get(node.attr, "")]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                if _DOTTED.fullmatch(node.value):
                    names += [node.value, node.value.rpartition(".")[0]]
                files += [x for x in _CONFIGURATION.findall(node.value) if x in self.files]
        return [*files, *(file for name in names for file in self._with_packages(name))]

    def _with_packages(self, module: str) -> Iterator[str]:
        parts = module.split(".")
        for length in range(1, len(parts) + 1):
            if file := self.path(".".join(parts[:length])):
                yield file

    def sources(self, command: str) -> list[str]:
        """The files that a command runs, sorted.

        Raises:
            ValueError: The command names no file of this repository.
        """
        waiting = [path for path in self._begun_by(command) if path in self.files]
        if not waiting:
            raise ValueError(f"`{command}` names no module, test or configuration that exists.")
        found: set[str] = set()
        while waiting:
            path = waiting.pop()
            if path not in found and not path.startswith("validation/origin"):
                found.add(path)
                waiting += self.imports(path)
        return sorted(found)

    def _begun_by(self, command: str) -> Iterator[str]:
        before = ""
        for word in shlex.split(command):
            yield from [word, *self._with_packages(word), *self._with_packages(f"{word}.__main__")]
            if "isentrope" in (before, word):
                verb = word if before == "isentrope" else ""
                yield from self._with_packages(f"isentrope.commands.{verb}")
            before = word
            if word.startswith(("tests/", "benchmarks/")):
                yield from (path for path in self.files if path.startswith(word.rstrip("/") + "/"))

    def digest(self, paths: list[str]) -> str:
        """Of the content of these files: 12 hexadecimal digits."""
        for path in set(paths) - set(self._digests):
            text = self.files[path]
            if path.endswith(".yaml"):
                content = re.sub(r"\s*#.*", "", text).strip()
            else:
                content = repr([*_flat(ast.parse(text))])
            self._digests[path] = hashlib.sha256(content.encode()).hexdigest()
        parts = sorted(self._digests[path] for path in paths)
        return hashlib.sha256("".join(parts).encode()).hexdigest()[:12]

    def origin(self, command: str, day: str | None = None) -> Origin:
        """Of a command that ran with these sources.

        Args:
            command: As it was typed, without paths of this machine.
            day: Today by default.

        Raises:
            ValueError: The command names no file of this repository.
        """
        paths = self.sources(command)
        commit = self.commit or _head(self._root, paths)
        return Origin(day or date.today().isoformat(), commit, self.digest(paths), command)


def _absolute(path: str, node: ast.ImportFrom) -> str:
    if not node.level:
        return node.module or ""
    parts = path.removeprefix("src/").removesuffix(".py").split("/")[: -node.level]
    return ".".join([*parts, *filter(None, [node.module])])


def _flat(node: ast.AST) -> Iterator[object]:
    """What a syntax tree says: without docstrings, positions and what is empty."""
    yield type(node).__name__
    for name, value in ast.iter_fields(node):
        values = value if isinstance(value, list) else [value]
        for item in values[_has_docstring(node, name) :]:
            if isinstance(item, ast.AST):
                yield name
                yield from _flat(item)
            elif item is not None:
                yield name, item
    yield None


def _has_docstring(node: ast.AST, field: str) -> int:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return int(field == "body" and isinstance(node, kinds) and ast.get_docstring(node) is not None)


def _head(root: Path, paths: list[str]) -> str:
    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=root, capture_output=True, text=True).stdout

    changed = git("status", "--porcelain", "--", *paths).strip()
    return (git("rev-parse", "--short=8", "HEAD").strip() or "unknown") + "+" * bool(changed)


def command_line() -> str:
    """The command that this process runs, without paths of this machine."""
    main = sys.modules["__main__"]
    module = main.__spec__.name if main.__spec__ else Path(sys.argv[0]).stem
    words = sys.argv[1:]
    if "--out" in words:  # where the page goes does not matter
        place = words.index("--out")
        words = words[:place] + words[place + 2 :]
    words = [Path(word).name if word.startswith("/") else word for word in words]
    return shlex.join(["python", "-m", module.removesuffix(".__main__"), *words])


def with_origins(text: str, origins: list[Origin]) -> str:
    """A page that says these origins, and those of other commands that it said before."""
    commands = {origin.command for origin in origins}
    kept = [origin for origin in origins_of(text) if origin.command not in commands]
    body = _LINE.sub("", text).rstrip()
    return "\n\n".join([body, *map(str, [*kept, *origins])]) + "\n"


def write_results(page: Path, text: str) -> None:
    """Write a page; one of docs/results says that it comes from the command of this process.

    Args:
        page: Of docs/results, or elsewhere for a trial, which says nothing.
        text: Markdown. Origins in it stay, those of the same command apart.
    """
    if page.resolve().parent == ROOT / "docs" / "results":
        text = with_origins(text, [Tree().origin(command_line())])
    page.write_text(text, encoding="utf-8")
