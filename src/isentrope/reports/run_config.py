"""The config.yaml of a run folder, as far as a report speaks of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from isentrope.config.io import ConfigError, read_yaml
from isentrope.results.header import Provenance

Sections = Mapping[str, Mapping[str, Any]]
"""Keys and values by section."""


def read_sections(folder: Path, missing: list[str] | None = None) -> Sections:
    """The sections of a config.yaml, perhaps of an earlier version; empty if it is unreadable."""
    path = folder / "config.yaml"
    try:
        content = read_yaml(path) if path.exists() else {}
    except ConfigError as error:
        content = {}
        if missing is not None:
            missing.append(str(error))
    return {key: value for key, value in content.items() if isinstance(value, dict)}


def provenance_of(config: Sections) -> Provenance:
    """With what a run was made."""
    known = {field.name for field in fields(Provenance)}
    content = config.get("provenance", {})
    return Provenance(**{key: value for key, value in content.items() if key in known and value})
