"""Secrets that do not belong in a configuration, which is written into every run folder.

They are recognised by their key in any spelling (hub_token, apiKey, api-key), by how tokens of
known services begin, and in URLs (user:password@host).
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_ALWAYS = re.compile(
    r"passwords?|passwd|pwd|passphrase|secrets?|credentials?|authorization|bearer"
    r"|(api|access|secret|private)keys?"
)
_OF_ACCESS = re.compile(
    r"access|account|api|auth(?!ors?\Z).*|bearer|bot|client|deploy|encryption|hf|hub|id|jwt|license"
    r"|login|master|oauth|private|refresh|secret|service|session|signing|ssh|wandb|webhook"
)
"""Words that make a secret of a token or a key, whatever its value."""
_HARMLESS = re.compile(
    r"eos|bos|pad|unk|sep|cls|mask|image|video|audio|stop|end|start|max|min|num|new|special|text"
    r"|prompt|answer|reward|response|reference|label|dataset|column|sort|group|think"
)
"""Words that make something else of it, where none of the others is beside them."""
_MARK = re.compile(r"<.*>|\[.*\]|\W*")
"""A token of a tokenizer."""
_VALUE = re.compile(
    r"(?<![A-Za-z0-9])(hf_[A-Za-z0-9]{20,}|sk-(?:[A-Za-z0-9]+-)*\w{16,}|gh[pousr]_[A-Za-z0-9]{20,}"
    r"|github_pat_\w{20,}|gl(?:pat|dt|rt|cbt|ptt|ft|soat)-[\w-]{16,}|xox[a-z]-[\w-]{10,}|A(?:KIA|SIA)[A-Z0-9]{12,}"
    r"|AIza[\w-]{30,}|npm_[A-Za-z0-9]{30,}|pypi-AgE[\w-]{30,}|nvapi-[\w-]{20,}"
    r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]*)|-----BEGIN [A-Z ]*PRIVATE KEY"
    r"|(?i:\b(?:bearer\s+(?=\S*\d)[\w.~+/=-]{12,}|basic\s+(?=\S*\d)[\w+/=]{12,}(?![\w.-])))"
    r"|\w://[^/\s:@]*:[^/\s@]+@"
)
_ASSIGNED = re.compile(
    r"(?<![\w.-])(?P<key>[A-Za-z][\w.-]*+)['\"]?+\s*+(?P<sign>[:=])\s*+['\"]?"
    r"(?P<value>[^\s&,;?'\"]+)"
)
"""A pair in a text; of several in a query string each is one."""
_CONSTANT = re.compile(r"(?i:null|none|true|false|[-+.\de]+[\]}]*)")
_SHORT = 4
"""Words of a text in which "key: value" is a setting, and not a sentence."""
_PAIR = re.compile(r"(?<![\w.-])([\w.-]++)(['\"]?\s*[:=]\s*)(\S.*)")


def secrets_in(content: Any, prefix: str = "") -> Iterator[str]:
    """Dotted keys, such as "trainer.hub_token", that hold tokens, passwords or access keys."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            name = f"{prefix}.{key}" if prefix else str(key)
            if _holds_secret(str(key)):
                yield f"{prefix or 'the configuration'} (a key of it)"
            elif _is_secret(str(key), value):
                yield name
            else:
                yield from secrets_in(value, name)
    elif isinstance(content, (list, tuple)):
        for i, value in enumerate(content):
            yield from secrets_in(value, f"{prefix}[{i}]")
    elif isinstance(content, str) and _holds_secret(content):
        yield prefix


def _holds_secret(text: str) -> bool:
    """Whether a text holds a secret, or assigns one: key=value, or a short key: value."""
    if _VALUE.search(text):
        return True
    short = len(text.split()) <= _SHORT
    return any(
        _is_assigned_secret(pair)
        for pair in _ASSIGNED.finditer(text)
        if short or pair["sign"] == "="
    )


def without_secrets(text: str) -> str:
    """A text for a message, without what may be a secret in it."""

    def hidden(pair: re.Match[str]) -> str:
        return f"{pair[1]}{pair[2]}…" if _is_secret(pair[1].split(".")[-1], pair[3]) else pair[0]

    def hidden_value(pair: re.Match[str]) -> str:
        return f"{pair['key']}{pair['sign']}…" if _is_assigned_secret(pair) else pair[0]

    return _VALUE.sub("…", _PAIR.sub(hidden, _ASSIGNED.sub(hidden_value, text)))


def _is_assigned_secret(pair: re.Match[str]) -> bool:
    """Whether a pair in a text is a secret; a number or a constant is none."""
    plain = _CONSTANT.fullmatch(pair["value"]) is not None
    return not plain and _is_secret(pair["key"].split(".")[-1], pair["value"])


def _is_secret(key: str, value: Any) -> bool:
    """Whether a value is one by the name of its key."""
    if value is None or isinstance(value, bool) or value in ("", [], {}):
        return False
    words = [word.lower() for word in _WORD.findall(key)]
    if not words:
        return False
    *qualifiers, last = words
    if _ALWAYS.fullmatch(last):
        return True
    if last.removesuffix("s") not in ("token", "key"):
        return False
    if any(map(_OF_ACCESS.fullmatch, qualifiers)):
        return True
    # a number of tokens is a size, `key` alone is that of a row
    if not isinstance(value, str) or words == ["key"] or any(map(_HARMLESS.fullmatch, words)):
        return False
    is_column = last.startswith("key") and not re.search(r"\d", value)
    return not (is_column or _MARK.fullmatch(value))
