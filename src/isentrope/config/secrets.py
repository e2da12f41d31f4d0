"""Secrets that do not belong in a configuration, which is written into every run folder."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

_SECRET = re.compile(r"(^|_)(token|key|secret|password|credential)s?$", re.IGNORECASE)
_HARMLESS = re.compile(
    r"(eos|bos|pad|unk|sep|cls|mask|image|video|audio|stop|end|start|max|min|num|new|special|text)"
    r"_(tokens?|keys?)$|_tokens$|^tokens$",
    re.IGNORECASE,
)
_VALUE = re.compile(r"^(hf_[A-Za-z0-9]{20,}|sk-[\w-]{16,}|gh[pousr]_[A-Za-z0-9]{20,})$")


def secrets_in(content: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys, such as "trainer.hub_token", that hold tokens, passwords or access keys."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            named = _SECRET.search(str(key)) and not _HARMLESS.search(str(key))
            if named and isinstance(value, str) and value:
                yield name
            else:
                yield from secrets_in(value, name)
    elif isinstance(content, (list, tuple)):
        for i, value in enumerate(content):
            yield from secrets_in(value, f"{prefix}[{i}]")
    elif isinstance(content, str) and _VALUE.match(content):
        yield prefix
