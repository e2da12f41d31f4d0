"""Strict YAML: what a configuration file may hold, and text written so that it reads back.

Read: one document of mappings, lists, texts, finite numbers, true, false and null. Tags, aliases,
keys that are not text and keys given twice are refused. A number has one spelling: `010`, `1_000`
and `1:30` are texts. A number keeps its spelling, for where a text is due.

A file that we write begins with `FIRST_LINE` and ends with `LAST_LINE`. A file with the first line
and without the last one was cut, and is refused.
"""

import math
import re
import reprlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from isentrope.system.errors import FileError, IsentropeError
from isentrope.system.reading import read_text
from isentrope.system.secrets import without_secrets

FIRST_LINE = "# isentrope configuration"
LAST_LINE = "# end of configuration"

MAX_CHARACTERS = 1_000_000
MAX_DEPTH = 40
MAX_NODES = 20_000
"""Keys, values and items; a hundred thousand take the parser many seconds."""
MAX_INTEGER = 2**63 - 1

_SCALARS = {
    "int": r"^[-+]?(0|[1-9][0-9]*)$",
    "float": r"^[-+]?((\d+\.\d*|\.\d+)([eE][-+]?\d+)?|\d+[eE][-+]?\d+)$",
    "bool": r"^(true|True|TRUE|false|False|FALSE)$",
    "null": r"^(~|null|Null|NULL|)$",
}
"""Spellings of what is no text."""


class ConfigError(IsentropeError, ValueError):
    """The configuration is not understood; the message says what to change."""


class SpelledInt(int):
    """A whole number and its spelling."""

    text: str


class SpelledFloat(float):
    """A real number and its spelling."""

    text: str


def number_of(text: str) -> int | float:
    """The number that a text spells."""
    number = (SpelledInt if text.lstrip("+-").isdecimal() else SpelledFloat)(text)
    number.text = text
    return number


def spelling(value: Any) -> Any:
    """The text of a number that was read without quotes; any other value as it is."""
    return value.text if isinstance(value, (SpelledInt, SpelledFloat)) else value


_EXPONENT = re.compile(r"[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")
"""A number by its exponent, which PyYAML leaves a text where it has no dot or no sign."""


def as_written(content: Any) -> Any:
    """Content of PyYAML, with numbers for texts such as 1e-5."""
    if isinstance(content, Mapping):
        return {key: as_written(value) for key, value in content.items()}
    if isinstance(content, list):
        return [as_written(value) for value in content]
    if isinstance(content, str) and _EXPONENT.fullmatch(content):
        return number_of(content)
    return content


class _Loader(yaml.SafeLoader):
    """YAML without tags, in which a number has one spelling."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  those of `_SCALARS` alone
    depth = 0
    nodes = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        if isinstance(event, yaml.AliasEvent):  # which may stand for itself, or for very much
            raise _refusal(event, "an alias (*name) is not read: write the value out")
        if getattr(event, "tag", None) is not None:
            raise _refusal(event, "a tag is not read: leave it out")
        self.nodes += 1
        if self.nodes > MAX_NODES:
            raise _refusal(event, f"it has more than {MAX_NODES} keys and values")
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise _refusal(event, f"more than {MAX_DEPTH} levels are nested")
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node, deep=False):
        content: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            key = key_node.value
            if key_node.tag != "tag:yaml.org,2002:str":
                words = brief(key) if isinstance(key, str) else "a list or mapping"
                raise _refusal(key_node, f"a key must be a text, and {words} is not: quote it")
            if key in content:
                raise _refusal(key_node, f"the key {brief(key)} is given twice")
            content[key] = self.construct_object(value_node, deep=True)
        return content

    def construct_value(self, node: Any) -> Any:
        kind = node.tag.rpartition(":")[2]
        text = node.value
        if kind == "null":
            return None
        if kind == "bool":
            return text.lower() == "true"
        if kind == "int" and (len(text) > 20 or abs(int(text)) > MAX_INTEGER):
            raise _refusal(node, "a number has more than 63 bits")
        if not math.isfinite(float(text)):
            raise _refusal(node, f"{brief(text)} is not a finite number")
        return number_of(text)


def _refusal(place: Any, words: str) -> yaml.MarkedYAMLError:
    return yaml.MarkedYAMLError(problem=words, problem_mark=place.start_mark)


class _Dumper(yaml.SafeDumper):
    """Quotes every text that `_Loader`, or any reader of YAML 1.1, would read as something else."""

    def ignore_aliases(self, data):
        return True


for _kind, _pattern in _SCALARS.items():
    _tag = f"tag:yaml.org,2002:{_kind}"
    _Loader.add_implicit_resolver(_tag, re.compile(_pattern), None)
    _Loader.add_constructor(_tag, _Loader.construct_value)
    _Dumper.add_implicit_resolver(_tag, re.compile(_pattern), None)


def parse(text: str, source: str) -> Any:
    """Read a document.

    Args:
        text: YAML.
        source: What it is, the beginning of a complaint.

    Returns:
        Dictionaries, lists and values; a number keeps its spelling.

    Raises:
        ConfigError: If it is not one document of strict YAML.
    """
    try:
        return yaml.load(text, _Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)  # without the text itself
        problem = getattr(error, "problem", None) or " ".join(str(error).split())
        source = shortened(source)
        place = f"{source}, near line {mark.line + 1}," if mark else source
        raise ConfigError(
            f"{place} is not YAML that is read here: {shortened(problem)}."
        ) from error


def yaml_text(path: Path) -> str:
    """The text of a configuration file, which is complete if we wrote it.

    Returns:
        Its text.

    Raises:
        ConfigError: If it is missing, a folder, too large, not UTF-8, or was cut.
    """
    if path.is_dir():
        raise ConfigError(
            f"{path} is a folder, and this verb reads a configuration, a YAML file that names it: "
            "`isentrope config show --for VERB` prints one with every setting. check, "
            "evaluate, plan and the measuring verbs take the folder of a checkpoint itself."
        )
    try:
        text = read_text(path, "Give a YAML file of at most 1 MB in UTF-8.")
    except (OSError, FileError) as error:
        raise ConfigError(str(error)) from error
    if len(text) > MAX_CHARACTERS:
        raise ConfigError(f"{path} has {len(text)} characters, too many for a configuration.")
    lines = text.splitlines()
    if lines and lines[0] == FIRST_LINE and LAST_LINE not in lines:
        raise ConfigError(
            f"{path} is incomplete: it begins with {FIRST_LINE!r} and has no line {LAST_LINE!r}. "
            "Restore it from a copy; if it is a file of your own, remove its first line."
        )
    return text


def dump(content: Mapping[str, Any]) -> str:
    """Write content as YAML that `parse` reads back equal."""
    return yaml.dump(dict(content), Dumper=_Dumper, sort_keys=False, width=2**31)


def brief(value: Any) -> str:
    """A value in at most about 100 characters, for messages."""
    if isinstance(value, int) and abs(value) > MAX_INTEGER:
        return f"a number of {value.bit_length()} bits"
    if isinstance(value, str):
        value = without_secrets(value)
    short = reprlib.Repr()
    short.maxlevel = 3
    short.maxstring = 80
    short.maxother = 80
    return shortened(short.repr(value), 100)


def shortened(text: str, limit: int = 200) -> str:
    """A text without secrets, its middle left out where it is longer than the limit."""
    text = without_secrets(text)
    half = (limit - 5) // 2
    return text if len(text) <= limit else f"{text[:half]} ... {text[-half:]}"
