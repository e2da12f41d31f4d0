"""What a command left behind, as plain JSON: files, every key and value, a digest of tables.

Times, versions, hashes and paths are replaced by a mark. So are sentences (their wording may
change), and numbers that are rounding noise. A table is kept as its rows and, per column, sums
from which a changed, missing or displaced value shows.
"""

import json
import math
import re

import numpy as np
import pandas as pd
import yaml

TIME = re.compile(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d")
EVENTS = re.compile(r"(?<=tfevents)\..*")
"""Time, host and process in the name of a TensorBoard file."""
VERSIONS = re.compile(r"(^|\.)(provenance\.(git|python|isentrope)|environment\..*)$")
TIMES = re.compile(r"(^|\.)timing\.|seconds|per_second")
HASHES = re.compile(r"sha256|digest|made_from")
NOISE = re.compile(r"closure|rounding_floor\.|smallest_eta|rounding(_se)?$|replay_error")
OPTIONAL = re.compile(r"(^|\.)provenance\.packages\.")
FOREIGN = (
    *("adapter_config.json", "tokenizer.json", "tokenizer_config.json", "trainer_state.json"),
    *("manifest.json", "isentrope.json"),
)
"""Files that other libraries fill, and digests of them; they are listed."""
LONG = 24
"""Lists of more numbers than this are digested like a column."""
ESTIMATE = {"value", "se", "ci_low", "ci_high"}


def record(folder, places):
    """A folder as {"files": [...], "values": {file: {key: value}}, "tables": {file: digest}}.

    `places` maps paths that are different in every run to the names they are recorded by. Of the
    configuration of a measurement only what differs from that of its run is kept.
    """
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    names = {
        p: EVENTS.sub("<events>", TIME.sub("<time>", str(p.relative_to(folder)))) for p in files
    }
    values = {n: flat(c, places) for p, n in names.items() if (c := _content(p)) is not None}
    tables = {n: digest(t, places) for p, n in names.items() if (t := _table(p)) is not None}
    whole = values.get("config.yaml", {})
    for name, own in values.items():
        if name.endswith("/config.yaml"):
            other = {key: value for key, value in own.items() if whole.get(key, "?") != value}
            values[name] = {"keys": len(own)} | other
    return {"files": sorted(names.values()), "values": values, "tables": tables}


def condensed(record):
    """A record with the keys of each file counted, and its numbers digested as one column."""
    values = {}
    for name, content in record["values"].items():
        numbers = [x for x in _leaves(_inner(content)) if isinstance(x, (int, float))]
        keys = len({re.sub(r"\[\d+\]|\d", "", key) for key in content})
        values[name] = {"keys": keys} | column(pd.Series(numbers, dtype=float), {})
    return record | {"values": values}


def _inner(content):
    return [_inner(x) if isinstance(x, dict) else x for x in content.values()]


def _content(path):
    reader = None if path.name in FOREIGN else READERS.get(path.suffix)
    return reader(path.read_text(encoding="utf-8")) if reader else None


def _table(path):
    reader = {".csv": pd.read_csv, ".parquet": pd.read_parquet}.get(path.suffix)
    return reader(path) if reader and path.stat().st_size > 1 else None


def _lines(text):
    return [json.loads(line) for line in text.splitlines()]


READERS = {".json": json.loads, ".yaml": yaml.safe_load, ".jsonl": _lines}


def flat(content, places, key=""):
    """Nested content as {"a.b[0].c": value}; an Estimate stays together."""
    if isinstance(content, dict) and content:
        parts = [flat(value, places, f"{key}.{k}".lstrip(".")) for k, value in content.items()]
        whole = {k: v for part in parts for k, v in part.items() if not OPTIONAL.search(k)}
        return {key: _inside(whole, key)} if content.keys() >= ESTIMATE and key else whole
    if isinstance(content, list) and content:
        if len(content) > LONG and all(isinstance(x, (int, float)) for x in content):
            return {key: column(pd.Series(content), places)}
        parts = [flat(value, places, f"{key}[{i}]") for i, value in enumerate(content)]
        return {k: v for part in parts for k, v in part.items()}
    return {key: value_of(key, content, places)}


def _inside(values, key):
    return {name.removeprefix(key).lstrip("."): value for name, value in values.items()}


def value_of(key, value, places):
    """A value, or the mark of what may differ."""
    if value is None or isinstance(value, bool):
        return value
    for mark, pattern in {"time": TIMES, "version": VERSIONS, "hash": HASHES}.items():
        if pattern.search(key):
            return f"<{mark}>"
    if isinstance(value, float):
        return "<noise>" if NOISE.search(key) else rounded(value)
    return words(key, value, places) if isinstance(value, str) else value


def words(key, value, places):
    """A name or a unit as it is, a path with its place named, a sentence as a mark."""
    for path, name in places.items():
        value = value.replace(path, name)
    if " " in value and not key.endswith("unit"):
        return "<sentence>"
    return TIME.sub("<time>", value)


def rounded(number):
    """Nine digits, more than any comparison asks for; NaN and infinity by name."""
    return float(f"{number:.9g}") if math.isfinite(number) else str(number)


def digest(table, places):
    """The number of rows, then what is in each column, in their order."""
    columns = {str(name): column(values, places, str(name)) for name, values in table.items()}
    return {"(rows)": len(table)} | columns


def column(values, places, name=""):
    """Sums of numbers, and of lengths of texts; nested lists are counted number by number."""
    if TIMES.search(name) or NOISE.search(name):
        return {"of": "<noise>"}
    flattened = list(_leaves(values.tolist()))
    numbers = [x for x in flattened if isinstance(x, (bool, int, float)) and x == x]
    texts = [words(name, x, places) for x in flattened if isinstance(x, str)]
    said = {"missing": len(flattened) - len(numbers) - len(texts)}
    if numbers:
        x = np.array(numbers, dtype=float)
        finite = x[np.isfinite(x)]
        ramp = np.arange(1, len(finite) + 1) / max(len(finite), 1)
        said |= {"numbers": len(x), "infinite": len(x) - len(finite)}
        sums = {"size": abs(finite).sum(), "sum": finite.sum(), "ramp": ramp @ finite}
        said |= {k: rounded(float(v)) for k, v in sums.items()}
    if texts:
        said |= {"texts": len(texts), "distinct": len(set(texts)), "letters": sum(map(len, texts))}
    return {k: v for k, v in said.items() if v or isinstance(v, float)}


def _leaves(values):
    for value in values:
        if isinstance(value, (list, tuple, np.ndarray)):
            yield from _leaves(value)
        else:
            yield value.item() if isinstance(value, np.generic) else value
