"""The log of a measurement, from its numbers (minimal) to its tokens and tensors (debug).

    measure_<name>_<time>.log.json[.gz]     results; from "standard" on also batches and weights
    ....sequences.parquet                   one row per sequence of E and U         ("detailed")
    ....tokens.parquet                      one row per token                     ("debug")
    ....tensors.safetensors                 direction, components, P, scores      ("debug")

`max_files` logs are kept in a directory; the oldest go first, and their tables with them.
"""

import gzip
import json
import math
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pandas as pd
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
_OF_BATCH = ("lengths", "prompt_index", "prompt_keys", "rewards", "advantages")
_OF_WEIGHTS = ("ess_whole", "ess_integrated", "carriers", "khat", "verdict")


def detailed_log(measured: Measurement) -> Callable[[MeasureResult, Path], None]:
    """Collect what is to be logged of one measurement while the policy is at hand.

    Args:
        measured: The measurement.

    Returns:
        Takes its result and a folder, for where the configuration names none. It writes the log
        and removes logs beyond `max_files`; nothing where logging is off.
    """
    tables: dict[str, pd.DataFrame] = {}
    ready, logging = measured.ready, measured.ready.logging
    if logging.wants("sequences") or logging.wants("tokens"):
        E, U, policy = ready.E, ready.U, ready.policy
        at_theta, *derivatives = measured.change.sample.series
        scored = {
            "E": (E, at_theta, derivatives[0] if derivatives else None),
            "U": (U, score(policy, U), None),
        }
        if logging.wants("sequences"):
            of_step = ready.step.token_weights[:, 0].tolist()
            own = {"E": _log_weights(measured), "U": {"objective_weight": of_step}}
            of = {name: _sequences(policy, *one) | own[name] for name, one in scored.items()}
            tables["sequences"] = _stacked(of)
        if logging.wants("tokens"):
            of = {name: _tokens(policy, *one) for name, one in scored.items()}
            tables["tokens"] = _stacked(of)
    tensors = _raw_tensors(measured) if logging.wants("raw_tensors") else {}

    def write(result: MeasureResult, directory: Path) -> None:
        if not logging.enabled:
            return
        folder, repeat = (
            Path(logging.output_directory or directory),
            ready.sampler.data.first_repeat,
        )
        which = f"{result.policy.name}_repeat_{repeat}" if repeat else result.policy.name
        stem = f"measure_{which}_{datetime.now():{TIME}}"
        zipped = "gzip" if logging.compress else None
        files = {f"{stem}.{k}.parquet": parquet(x, zipped) for k, x in tables.items()}
        if tensors:
            files[f"{stem}.tensors.safetensors"] = save(tensors)
        content: dict[str, Any] = {"results": result.to_dict()}
        if logging.wants("statistics"):
            content |= _statistics(measured)
        text = json.dumps(finite(content), indent=1, ensure_ascii=False).encode()
        last = f"{stem}.log.json.gz" if zipped else f"{stem}.log.json"
        files[last] = gzip.compress(text) if zipped else text
        for name, body in files.items():  # all at hand before the first is written
            write_bytes(folder / name, body)
        rotate(folder, logging)

    return write


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


def _stacked(columns: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """One table of both batches, with the name of the batch first."""
    parts = [pd.DataFrame({"batch": name} | of) for name, of in columns.items()]
    return pd.concat(parts, ignore_index=True)


def _sequences(
    policy: Policy, of: Rollouts, scores: Scores, slopes: Scores | None
) -> dict[str, Any]:
    """Columns of sequences; logprob and entropy in nats, summed; logprob_slope is ∂_v S."""
    known = columns_of_responses(of)
    decode = policy.tokenizer and policy.tokenizer.decode
    return {
        "sequence": range(len(of)),
        "prompt_index": known["prompt"],
        "prompt_key": known["key"],
        "prompt": decode and [decode(ids.tolist()) for ids in of.prompt_ids],
        "response": of.response_texts,
        "length": known["length"],
        "logprob": scores.logprobs.sum(1).tolist(),
        "entropy": scores.entropies.sum(1).tolist(),
        "logprob_slope": slopes and slopes.logprobs.sum(1).tolist(),
        "reward": known["reward"],
        "advantage": known["advantage"],
    }


def _tokens(policy: Policy, of: Rollouts, scores: Scores, slopes: Scores | None) -> dict[str, Any]:
    """Columns of tokens; logprob and entropy in nats, and their derivatives along v."""
    mask, known = scores.mask, columns_of_tokens(of, policy.tokenizer)
    text = known.pop("text")
    return {
        **known,
        "token": text,
        "logprob": scores.logprobs[mask].tolist(),
        "entropy": scores.entropies[mask].tolist(),
        "sampler_logprob": of.sampler_logprobs and of.padded("sampler_logprobs")[mask].tolist(),
        "logprob_slope": slopes and slopes.logprobs[mask].tolist(),
        "entropy_slope": slopes and slopes.entropies[mask].tolist(),
    }


def _statistics(measured: Measurement) -> dict[str, Any]:
    ready = measured.ready
    return {
        "batches": {
            name: {column: _plain(getattr(batch, column)) for column in _OF_BATCH}
            for name, batch in (("E", ready.E), ("U", ready.U))
        },
        "weights": [
            {
                "eta": point.eta,
                "ess": point.ess,
                "ess_by_position": point.trust.ess_by_position.tolist(),
                "khat_bound": point.trust.bound,
                **{name: getattr(point.trust, name) for name in _OF_WEIGHTS},
            }
            for point in measured.change.points
        ],
    }


def _plain(column: Any) -> Any:
    return column.tolist() if isinstance(column, Tensor) else column


def _log_weights(measured: Measurement) -> dict[str, Any]:
    """S(θ + ηv) − S(sampler) of E at the rate of interest; NaN where it cannot be scored."""
    ready = measured.ready
    policy, E = ready.policy, ready.E
    try:
        moved = score(policy, E, policy.parameters_along(ready.step.direction, ready.rate))
    except NotFiniteError:
        return {"log_weight": math.nan}
    apart = moved.logprobs - measured.change.sample.sampler_logprobs
    return {"log_weight": apart.sum(1).tolist()}


def _raw_tensors(measured: Measurement) -> dict[str, Tensor]:
    """The step and the scores of E as named tensors.

    Args:
        measured: What was found.

    Returns:
        "direction.<parameter>", "preconditioner.…", "momentum.…", "decay.…", "gradient.…", and
        "E.logprobs", "E.entropies" and their derivatives along v as "E.d1_…", "E.d2_…".
    """
    step = measured.ready.step
    vectors = {"direction": step.direction, "preconditioner": step.preconditioner}
    vectors |= step.components
    tensors = {
        f"{kind}.{name}": tensor.detach().cpu().contiguous().clone()
        for kind, vector in vectors.items()
        for name, tensor in vector.items()
    }
    for order, scores in enumerate(measured.change.sample.series):
        prefix = f"E.d{order}_" if order else "E."
        tensors[f"{prefix}logprobs"] = scores.logprobs.clone()
        tensors[f"{prefix}entropies"] = scores.entropies.clone()
    return tensors
