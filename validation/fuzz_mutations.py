"""Damage to a file: what disks, tools and hands do to bytes, lines, values, tensors and tables.

`mutations(name)` gives the kinds of damage for a file of this name. A kind is a function of the
content and a random generator that gives the damaged content, or None where the content has
nothing of the kind.
"""

from __future__ import annotations

import io
import json
import random
from collections.abc import Callable
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import torch
import yaml
from safetensors.torch import load, save

from validation.fuzz_trees import TREES

Mutation = Callable[[bytes, random.Random], bytes | None]


def flipped(raw: bytes, rng: random.Random) -> bytes:
    """One bit is the other one."""
    damaged = bytearray(raw)
    damaged[rng.randrange(len(raw))] ^= 1 << rng.randrange(8)
    return bytes(damaged)


def zeroed(raw: bytes, rng: random.Random) -> bytes:
    """A range of bytes is zero, as after a power cut."""
    begin, end = _range(raw, rng)
    return raw[:begin] + bytes(end - begin) + raw[end:]


def doubled(raw: bytes, rng: random.Random) -> bytes:
    """A range of bytes is there twice."""
    begin, end = _range(raw, rng)
    return raw[:end] + raw[begin:end] + raw[end:]


def moved(raw: bytes, rng: random.Random) -> bytes:
    """A range of bytes is at another place."""
    begin, end = _range(raw, rng)
    rest = raw[:begin] + raw[end:]
    place = rng.randrange(len(rest) + 1)
    return rest[:place] + raw[begin:end] + rest[place:]


def emptied(raw: bytes, rng: random.Random) -> bytes:
    """Nothing is left."""
    return b""


def _range(raw: bytes, rng: random.Random) -> tuple[int, int]:
    begin = rng.randrange(len(raw))
    return begin, min(len(raw), begin + rng.choice((1, 4, 16, 64, 512)))


def line_deleted(raw: bytes, rng: random.Random) -> bytes:
    """A line is missing."""
    lines = raw.splitlines(keepends=True)
    del lines[rng.randrange(len(lines))]
    return b"".join(lines)


def line_doubled(raw: bytes, rng: random.Random) -> bytes:
    """A line is there twice."""
    lines = raw.splitlines(keepends=True)
    place = rng.randrange(len(lines))
    return b"".join([*lines[: place + 1], b"\n", *lines[place:]])


def lines_swapped(raw: bytes, rng: random.Random) -> bytes | None:
    """Two lines are in each other's place."""
    lines = raw.rstrip(b"\n").split(b"\n")
    if len(lines) < 2:
        return None
    i, j = rng.sample(range(len(lines)), 2)
    lines[i], lines[j] = lines[j], lines[i]
    return b"\n".join(lines) + b"\n"


def lines_joined(raw: bytes, rng: random.Random) -> bytes | None:
    """The end of a line is missing."""
    ends = [i for i, byte in enumerate(raw) if byte == 10]
    if not ends:
        return None
    place = rng.choice(ends)
    return raw[:place] + raw[place + 1 :]


def in_json(change: Any) -> Mutation:
    """The change in a JSON file."""

    def mutation(raw: bytes, rng: random.Random) -> bytes | None:
        content = change(json.loads(raw), rng)
        return None if content is None else json.dumps(content, indent=2).encode() + b"\n"

    return _named(mutation, change)


def in_line(change: Any) -> Mutation:
    """The change in one line of a jsonl file."""

    def mutation(raw: bytes, rng: random.Random) -> bytes | None:
        lines = raw.split(b"\n")
        place = rng.choice([i for i, line in enumerate(lines) if line.strip()])
        content = change(json.loads(lines[place]), rng)
        lines[place] = json.dumps(content).encode()
        return None if content is None else b"\n".join(lines)

    return _named(mutation, change)


def in_yaml(change: Any) -> Mutation:
    """The change in a YAML file that keeps its first and its last line."""

    def mutation(raw: bytes, rng: random.Random) -> bytes | None:
        lines = raw.decode().splitlines()
        content = change(yaml.safe_load(raw), rng)
        if content is None:
            return None
        return "\n".join([lines[0], yaml.safe_dump(content), lines[-1], ""]).encode()

    return _named(mutation, change)


def _named(mutation: Mutation, change: Any) -> Mutation:
    mutation.__name__, mutation.__doc__ = change.__name__, change.__doc__
    return mutation


def changed_tensors(
    tensors: dict[str, torch.Tensor], rng: random.Random
) -> dict[str, torch.Tensor]:
    """Tensors swapped, renamed, transposed, retyped, scaled or missing."""
    tensors = dict(tensors)
    first, second = rng.sample([*tensors], 2)
    x, other = tensors[first], tensors[second]
    match rng.randrange(9):
        case 0:
            tensors |= {first: other, second: x}
        case 1:
            tensors[f"{first}_"] = tensors.pop(first)
        case 2:
            tensors[first] = x.t().contiguous() if x.ndim == 2 else x.reshape(1, -1)
        case 3:
            kind = rng.choice((torch.float16, torch.bfloat16, torch.float64, torch.int32))
            tensors[first] = x.to(kind)
        case 4:
            tensors[first] = x * rng.choice((-1, 0, 2, 1e3))
        case 5:
            del tensors[first]
        case 6:
            value = rng.choice((float("nan"), float("inf"), 0.5))
            tensors[first] = x.clone().index_fill_(0, torch.tensor([0]), value) if x.ndim else x + 1
        case 7:
            tensors[f"{first}_"] = x.clone()
        case 8:
            tensors[first] = x[: len(x) // 2].contiguous() if x.ndim else x + 1
    return tensors


def in_safetensors(raw: bytes, rng: random.Random) -> bytes:
    """Tensors are swapped, renamed, transposed, retyped, scaled or missing."""
    return save(changed_tensors(load(raw), rng), {"format": "pt"})


def in_optimizer(raw: bytes, rng: random.Random) -> bytes | None:
    """Moments or settings of the optimizer's state are others."""
    saved = torch.load(io.BytesIO(raw), weights_only=True)
    if rng.random() < 0.5:
        flat = {
            f"{i}/{key}": x
            for i, state in saved["state"].items()
            for key, x in state.items()
            if isinstance(x, torch.Tensor)
        }
        saved["state"] = {i: {} for i in saved["state"]}
        for name, x in changed_tensors(flat, rng).items():
            index, _, key = name.partition("/")
            saved["state"][int(index)][key] = x
    else:
        groups = rng.choice(TREES)(json.loads(json.dumps(saved["param_groups"])), rng)
        if groups is None:
            return None
        saved["param_groups"] = groups
    buffer = io.BytesIO()
    torch.save(saved, buffer)
    return buffer.getvalue()


def in_parquet(raw: bytes, rng: random.Random) -> bytes | None:
    """Rows or columns are doubled, permuted, retyped, renamed, null or missing."""
    table = pq.read_table(io.BytesIO(raw))
    name = rng.choice(table.column_names)
    place = table.column_names.index(name)
    column, rows = table.column(name), [*range(table.num_rows)]
    match rng.randrange(9):
        case 0:
            table = table.take([*rows, rng.choice(rows)])
        case 1:
            table = table.take(rng.sample(rows, len(rows)))
        case 2:
            table = table.take(rows[:-1])
        case 3:
            table = table.select(rng.sample(table.column_names, table.num_columns))
        case 4:
            table = table.drop_columns([name])
        case 5:
            table = table.set_column(place, f"{name}_", column)
        case 6:
            table = table.set_column(place, name, pa.nulls(len(rows), column.type))
        case 7:
            table = table.set_column(place, name, pa.array([str(x) for x in column.to_pylist()]))
        case 8:
            values = column.to_pylist()
            if not all(type(x) in (int, float) for x in values):
                return None
            scaled = pa.array([x * rng.choice((-1, 2)) for x in values], column.type)
            table = table.set_column(place, name, scaled)
    buffer = io.BytesIO()
    pq.write_table(table, buffer)
    return buffer.getvalue()


def in_csv(raw: bytes, rng: random.Random) -> bytes:
    """Rows or columns of a CSV file are doubled, permuted, scaled or missing."""
    table = pd.read_csv(io.BytesIO(raw))
    column = rng.choice([*table.columns])
    match rng.randrange(5):
        case 0:
            table = pd.concat([table, table.iloc[:1]])
        case 1:
            table = table.iloc[::-1]
        case 2:
            table = table.drop(columns=column)
        case 3:
            table = table.rename(columns={column: f"{column}_"})
        case 4:
            table[column] = table[column] * 2
    return table.to_csv(index=False).encode()


BYTES = (flipped, zeroed, doubled, moved, emptied)
LINES = (line_deleted, line_doubled, lines_swapped, lines_joined)
_BY_SUFFIX: dict[str, tuple[Mutation, ...]] = {
    ".json": (*map(in_json, TREES), *LINES),
    ".jsonl": (*map(in_line, TREES), *LINES),
    ".yaml": (*map(in_yaml, TREES), *LINES),
    ".safetensors": (in_safetensors,) * 6,
    ".parquet": (in_parquet,) * 6,
    ".csv": (in_csv, *LINES),
}


def mutations(name: str) -> tuple[Mutation, ...]:
    """The kinds of damage for a file of this name; one in several places is more frequent."""
    special = (in_optimizer,) * 6 if name == "optimizer.pt" else ()
    suffix = name[name.rfind(".") :]
    return (*BYTES, *special, *_BY_SUFFIX.get(suffix, ()))
