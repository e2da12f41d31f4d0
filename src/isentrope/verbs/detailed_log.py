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
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from safetensors.torch import save
from torch import Tensor

from isentrope.attribution.influence.contributions import columns_of_responses, columns_of_tokens
from isentrope.config.stages import LoggingConfig
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import NotFiniteError, Scores
from isentrope.results.results import MeasureResult
from isentrope.system.file_contents import finite, parquet
from isentrope.system.files import write_bytes
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
        measured, wants = self.measured, self.section.wants
        E, U = measured.batches.E, measured.batches.U
        if wants("sequences") or wants("tokens"):
            series = measured.change.sample.series
            of_E = _Scored("E", E, series[0], series[1] if len(series) > 1 else None)
            of_U = _Scored("U", U, score(policy, U))
            if wants("sequences"):
                weights = {"log_weight": log_weights(policy, measured).tolist()}
                of_step = {"objective_weight": measured.step.token_weights[:, 0].tolist()}
                self.tables["sequences"] = pd.concat(
                    [of_E.sequences(policy, weights), of_U.sequences(policy, of_step)],
                    ignore_index=True,
                )
            if wants("tokens"):
                tables = [one.tokens(policy) for one in (of_E, of_U)]
                self.tables["tokens"] = pd.concat(tables, ignore_index=True)
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


@dataclass(frozen=True)
class _Scored:
    """A batch with what is known of its tokens.

    Attributes:
        name: "E" or "U".
        rollouts: The batch.
        scores: At θ.
        slopes: Derivatives along v; None where they are not known.
    """

    name: str
    rollouts: Rollouts
    scores: Scores
    slopes: Scores | None = None

    def sequences(self, policy: Policy, weights: dict[str, list[float]]) -> pd.DataFrame:
        """One row per sequence; logprob and entropy in nats, summed; logprob_slope is ∂_v S."""
        of, tokenizer = self.rollouts, policy.tokenizer
        known = columns_of_responses(of)
        decode = None if tokenizer is None else tokenizer.decode
        columns = {
            "batch": self.name,
            "sequence": range(len(of)),
            "prompt_index": known["prompt"],
            "prompt_key": known["key"],
            "prompt": decode and [decode(ids.tolist()) for ids in of.prompt_ids],
            "response": of.response_texts,
            "length": known["length"],
            "logprob": self.scores.logprobs.sum(1).tolist(),
            "entropy": self.scores.entropies.sum(1).tolist(),
            "logprob_slope": self.slopes and self.slopes.logprobs.sum(1).tolist(),
            "reward": known["reward"],
            "advantage": known["advantage"],
        }
        return pd.DataFrame(columns | weights)

    def tokens(self, policy: Policy) -> pd.DataFrame:
        """One row per token; logprob and entropy in nats, and their derivatives along v."""
        of, mask, slopes = self.rollouts, self.scores.mask, self.slopes
        known = columns_of_tokens(of, policy.tokenizer)
        text = known.pop("text")
        columns = {
            "batch": self.name,
            **known,
            "token": text,
            "logprob": self.scores.logprobs[mask].tolist(),
            "entropy": self.scores.entropies[mask].tolist(),
            "sampler_logprob": of.sampler_logprobs and of.padded("sampler_logprobs")[mask].tolist(),
            "logprob_slope": slopes and slopes.logprobs[mask].tolist(),
            "entropy_slope": slopes and slopes.entropies[mask].tolist(),
        }
        return pd.DataFrame(columns)


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
                "rewards": None if rollouts.rewards is None else rollouts.rewards.tolist(),
                "advantages": None if rollouts.advantages is None else rollouts.advantages.tolist(),
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


def log_weights(policy: Policy, measurement: Measurement) -> Tensor:
    """Log-weight of each sequence of E at the rate of interest, by one more evaluation.

    Args:
        policy: The policy at θ.
        measurement: What was found.

    Returns:
        (n,) S(θ + ηv) − S(sampler), nats; NaN where the moved policy cannot be scored.
    """
    rate, E = measurement.rate, measurement.batches.E
    try:
        moved = score(policy, E, policy.parameters_along(measurement.step.direction, rate))
    except NotFiniteError:
        return torch.full((len(E),), torch.nan, dtype=torch.float64)
    return (moved.logprobs - measurement.change.sample.sampler_logprobs).sum(1)


def raw_tensors(measurement: Measurement) -> dict[str, Tensor]:
    """The step and the scores of E as named tensors.

    Args:
        measurement: What was found.

    Returns:
        "direction.<parameter>", "preconditioner.…", "momentum.…", "decay.…", "gradient.…", and
        "E.logprobs", "E.entropies" and their derivatives along v as "E.d1_…", "E.d2_…".
    """
    step = measurement.step
    vectors = {"direction": step.direction, "preconditioner": step.preconditioner}
    vectors |= step.components
    tensors = {
        f"{kind}.{name}": tensor.detach().cpu().contiguous().clone()
        for kind, vector in vectors.items()
        for name, tensor in vector.items()
    }
    for order, scores in enumerate(measurement.change.sample.series):
        prefix = f"E.d{order}_" if order else "E."
        tensors[f"{prefix}logprobs"] = scores.logprobs.clone()
        tensors[f"{prefix}entropies"] = scores.entropies.clone()
    return tensors
