"""Why mutants survive: by module and name (`benchmarks.mutations.Mutant.name`).

An explanation that begins with "Equivalent" says that no result changes.
"""

from __future__ import annotations

EXPLAINED: dict[tuple[str, str], str] = {}
