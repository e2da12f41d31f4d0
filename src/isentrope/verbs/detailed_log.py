"""The log of a measurement, from its numbers (minimal) to its tokens and tensors (debug).

    measure_<name>_<time>.log.json[.gz]     results; from "standard" on also batches and weights
    ....sequences.parquet                   one row per sequence of E and U         ("detailed")
    ....tokens.parquet                      one row per token                     ("debug")
    ....tensors.safetensors                 direction, components, P, scores      ("debug")

`max_files` logs are kept in a directory; the oldest go first, and their tables with them.
"""

from __future__ import annotations

import gzip
import json
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
from safetensors.torch import save
from torch import Tensor

from isentrope.config.stages import LoggingConfig
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.results.results import MeasureResult
from isentrope.system.file_contents import finite, parquet
from isentrope.system.files import write_bytes
from isentrope.verbs.log_tables import (
    listed,
    log_weights,
    raw_tensors,
    sequence_table,
    token_table,
)
from isentrope.verbs.measurement import Measurement

TIME = "%Y-%m-%d_%H-%M-%S"


class DetailedLog:
    """What is to be logged of one measurement, collected while the policy is at hand.

    Attributes:
        tables: Tables by name.
        tensors: Tensors by name.
    """

    def __init__(self, section: LoggingConfig, measured: Measurement, repeat: int) -> None:
        self.section = section
        self.measured = measured
        self.repeat = repeat
        self.tables: dict[str, pd.DataFrame] = {}
        self.tensors: dict[str, Tensor] = {}

    def observe(self, policy: Policy) -> None:
        """Collect what needs the model: tables of sequences and tokens, raw tensors."""
        measured = self.measured
        wants = self.section.wants
        if wants("sequences") or wants("tokens"):
            of_update = score(policy, measured.batches.U)
            batches = {
                "E": (measured.batches.E, measured.change.sample.series),
                "U": (measured.batches.U, (of_update,)),
            }
            weights = {"E": log_weights(policy, measured), "U": measured.step.token_weights[:, 0]}
            if wants("sequences"):
                self.tables["sequences"] = sequence_table(policy, batches, weights)
            if wants("tokens"):
                self.tables["tokens"] = token_table(policy, batches)
        if wants("raw_tensors"):
            self.tensors = raw_tensors(measured)

    def write(self, result: MeasureResult, directory: Path) -> Path | None:
        """Write the log and remove logs beyond `max_files`.

        Args:
            result: What is written of the measurement.
            directory: Where, if the configuration names no directory.

        Returns:
            The log's JSON file, or None where logging is off.
        """
        logging = self.section
        if not logging.enabled:
            return None
        folder = Path(logging.output_directory) if logging.output_directory else directory
        name = result.policy.name
        which = f"{name}_repeat_{self.repeat}" if self.repeat else name
        stem = f"measure_{which}_{datetime.now():{TIME}}"
        files: dict[str, bytes] = {}
        for name, table in self.tables.items():
            files[f"{stem}.{name}.parquet"] = parquet(table, "gzip" if logging.compress else None)
        if self.tensors:
            files[f"{stem}.tensors.safetensors"] = save(self.tensors)
        content = finite(_content(logging, result, self.measured))
        text = json.dumps(content, indent=1, ensure_ascii=False).encode()
        last = f"{stem}.log.json.gz" if logging.compress else f"{stem}.log.json"
        files[last] = gzip.compress(text) if logging.compress else text
        for name, body in files.items():  # all at hand before the first is written
            write_bytes(folder / name, body)
        rotate(folder, logging)
        return folder / last


def rotate(folder: Path, logging: LoggingConfig) -> None:
    """Remove the oldest logs, with their tables, until `max_files` are left; 0 keeps all."""
    if not logging.max_files:
        return
    logs = sorted(folder.glob("measure_*.log.json*"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    for old in logs[: -logging.max_files]:
        stem = old.name.partition(".log.json")[0]
        kinds = ("sequences.parquet", "tokens.parquet", "tensors.safetensors")
        for path in (*(folder / f"{stem}.{kind}" for kind in kinds), old):
            path.unlink(missing_ok=True)


def _content(
    section: LoggingConfig, result: MeasureResult, measured: Measurement
) -> dict[str, Any]:
    content: dict[str, Any] = {"results": result.to_dict()}
    if section.wants("statistics"):
        content["batches"] = {
            name: {
                "lengths": rollouts.lengths.tolist(),
                "prompt_index": rollouts.prompt_index.tolist(),
                "prompt_keys": rollouts.prompt_keys,
                "rewards": listed(rollouts.rewards),
                "advantages": listed(rollouts.advantages),
            }
            for name, rollouts in (("E", measured.batches.E), ("U", measured.batches.U))
        }
        content["weights"] = [
            {
                "eta": point.eta,
                "ess": point.ess,
                "ess_whole": point.trust.ess_whole,
                "ess_integrated": point.ess_integrated,
                "carriers": point.trust.carriers,
                "ess_by_position": point.trust.ess_by_position.tolist(),
                "khat": point.khat,
                "khat_bound": point.trust.bound,
                "verdict": point.verdict,
            }
            for point in measured.change.points
        ]
    return content
