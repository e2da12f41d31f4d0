"""What makes a result what it is, and the one comparison of what was with what is.

Settings are compared by dotted key, files by digests of their content (`origin`). File times are
not looked at, and neither is where files lie: a folder that was copied, touched or moved continues.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from isentrope.checkpoint.digests import UNKNOWN_DIGEST, Digests
from isentrope.config.io import ConfigError

Content = Mapping[str, Any]
"""Settings by dotted key, or the entries of a contract."""

CONFIG = "config.yaml"


@dataclass(frozen=True)
class Identity:
    """What a result was made with, or would be made with now.

    Attributes:
        settings: Value by dotted key.
        digests: Of the files it is made from, by part.
    """

    settings: Content
    digests: Digests = field(default_factory=dict)


def changed(before: Content, current: Content, may_change: Collection[str] = ()) -> list[str]:
    """Keys of either whose values differ, but for those that begin with what may change."""
    allowed = tuple(may_change)
    keys = (key for key in sorted({*before, *current}) if not key.startswith(allowed))
    return [key for key in keys if before.get(key) != current.get(key)]


def known_parts(before: Digests, current: Digests) -> list[str]:
    """Parts that both know, or that both do not know and call by a name."""
    shared = [part for part in current if part in before]
    return [
        p
        for p in shared
        if before[p].startswith(UNKNOWN_DIGEST) == current[p].startswith(UNKNOWN_DIGEST)
    ]


def changed_parts(before: Digests, current: Digests) -> list[str]:
    """Parts that are not what they were; those that one of both does not know are not compared."""
    return [part for part in known_parts(before, current) if before[part] != current[part]]


def require_same(
    place: object,
    before: Identity,
    current: Identity,
    may_change: Collection[str] = (),
    *,
    cure: str = "choose another --out, or remove it.",
    cure_of_files: str = "remove that folder to have it made anew, or choose another --out.",
) -> None:
    """Refuse to continue with other settings, or from other files.

    Args:
        place: What was made, or its folder.
        before: What it was made with; parts without a digest are not compared.
        current: What would be made now.
        may_change: Beginnings of keys that are not compared.
        cure: What to do about a setting, the end of the sentence.
        cure_of_files: What to do beside restoring files, the end of the sentence.

    Raises:
        ConfigError: Naming the first key and both values, or what changed.
    """
    if keys := changed(before.settings, current.settings, may_change):
        earlier, today = (_stated(keys[0], side.settings) for side in (before, current))
        raise ConfigError(f"{place} was made with {earlier}, and has {today} now: {cure}")
    if parts := changed_parts(before.digests, current.digests):
        raise ConfigError(
            f"{place} was made from other {' and '.join(sorted(parts))} than are there now: "
            f"restore them, {cure_of_files}"
        )


def _stated(key: str, settings: Content) -> str:
    return f"{key}={settings[key]}" if key in settings else f"no {key}"


def flat_settings(content: BaseModel | Content, prefix: str = "") -> dict[str, Any]:
    """Dotted key → value of a training configuration without output, or of nested dictionaries."""
    if isinstance(content, BaseModel):
        content = content.model_dump(mode="json", exclude={"output", "provenance"})
    flat: dict[str, Any] = {}
    for key, value in content.items():
        name = f"{prefix}{key}"
        flat |= flat_settings(value, f"{name}.") if isinstance(value, dict) else {name: value}
    return flat
