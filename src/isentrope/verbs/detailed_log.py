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
from isentrope.policy.scoring import score
from isentrope.policy.token_statistics import NotFiniteError, Scores
from isentrope.results.result import item_name
from isentrope.results.results import MeasureResult
from isentrope.system.file_contents import parquet
from isentrope.system.files import write_bytes
from isentrope.system.formatting import finite
from isentrope.verbs.measurement import Measurement

TIME = "%Y-%m-%d_%H-%M-%S"


def detailed_log(measured: Measurement) -> Callable[[MeasureResult, Path], list[Path]]:
    """Collect what is to be logged of one measurement while the policy is at hand.

    Args:
        measured: The measurement.

    Returns:
        Takes its result and a folder, for where the configuration names none. It writes the log,
        all files of it or none, removes logs beyond `max_files`, and returns the files; nothing
        where logging is off.
    """
    ready = measured.ready
    logging = ready.config.detailed_logging
    if not logging.enabled:
        return lambda *_: []
    zipped = "gzip" if logging.compress else None
    files: dict[str, bytes] = {}
    tokenizer = ready.policy.tokenizer
    scored: dict[str, tuple[Rollouts, Scores, Scores | None]] = {}
    if logging.wants("sequences") or logging.wants("tokens"):
        at_theta, *slopes = measured.change.sample.series
        scored["E"] = ready.E, at_theta, slopes[0] if slopes else None
        scored["U"] = ready.U, score(ready.policy, ready.U), None
    if logging.wants("sequences"):
        columns = {name: _sequences(tokenizer, *batch) for name, batch in scored.items()}
        columns["E"]["log_weight"] = _log_weights(measured)
        columns["U"]["objective_weight"] = ready.step.token_weights[:, 0].tolist()
        files["sequences.parquet"] = parquet(_stacked(columns), zipped)
    if logging.wants("tokens"):
        columns = {name: _tokens(tokenizer, *batch) for name, batch in scored.items()}
        files["tokens.parquet"] = parquet(_stacked(columns), zipped)
    if logging.wants("raw_tensors"):
        files["tensors.safetensors"] = save(_raw_tensors(measured))

    def write(result: MeasureResult, directory: Path) -> list[Path]:
        folder = Path(logging.output_directory or directory)
        name = item_name(result.policy.name, ready.sampler.data.first_repeat)
        stem = f"measure_{name}_{datetime.now():{TIME}}"
        content: dict[str, Any] = {"results": result.to_dict()}
        if logging.wants("statistics"):
            content |= _statistics(measured)
        text = json.dumps(finite(content), indent=1, ensure_ascii=False).encode()
        log = {"log.json.gz": gzip.compress(text)} if zipped else {"log.json": text}
        written: list[Path] = []
        try:
            for kind, body in (files | log).items():
                written.append(write_bytes(folder / f"{stem}.{kind}", body))
            rotate(folder, logging)
        except BaseException:  # raised again: also an interrupted log leaves no part of it
            for path in written:
                path.unlink(missing_ok=True)
            raise
        return written

    return write


def rotate(folder: Path, logging: LoggingConfig) -> None:
    """Remove the oldest logs, with their tables, until `max_files` are left; 0 keeps all."""
    logs = sorted(folder.glob("measure_*.log.json*"), key=lambda p: (p.stat().st_mtime_ns, p.name))
    for old in logs[: -logging.max_files] if logging.max_files else ():
        stem = old.name.partition(".log.json")[0]
        for kind in ("sequences.parquet", "tokens.parquet", "tensors.safetensors"):
            (folder / f"{stem}.{kind}").unlink(missing_ok=True)
        old.unlink(missing_ok=True)


def _log_weights(measured: Measurement) -> list[float] | float:
    """S(θ + ηv) − S(sampler) of E at the rate of interest; NaN where it cannot be scored."""
    ready = measured.ready
    try:
        point = ready.policy.parameters_along(ready.step.direction, ready.rate)
        moved_scores = score(ready.policy, ready.E, point)
    except NotFiniteError:
        return math.nan
    return (moved_scores.logprobs - measured.change.sample.sampler_logprobs).sum(1).tolist()


def _stacked(columns: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """One table of both batches, with the name of the batch first."""
    parts = [pd.DataFrame({"batch": name} | part) for name, part in columns.items()]
    return pd.concat(parts, ignore_index=True)


def _sequences(
    tokenizer: Any, batch: Rollouts, scores: Scores, slopes: Scores | None
) -> dict[str, Any]:
    """Columns of sequences; logprob and entropy in nats, summed; logprob_slope is ∂_v S."""
    columns = columns_of_responses(batch)
    return {
        "sequence": range(len(batch)),
        "prompt_index": columns["prompt"],
        "prompt_key": columns["key"],
        "prompt": tokenizer and [tokenizer.decode(ids.tolist()) for ids in batch.prompt_ids],
        "response": batch.response_texts,
        "length": columns["length"],
        "logprob": scores.logprobs.sum(1).tolist(),
        "entropy": scores.entropies.sum(1).tolist(),
        "logprob_slope": slopes and slopes.logprobs.sum(1).tolist(),
        "reward": columns["reward"],
        "advantage": columns["advantage"],
    }


def _tokens(
    tokenizer: Any, batch: Rollouts, scores: Scores, slopes: Scores | None
) -> dict[str, Any]:
    """Columns of tokens; logprob and entropy in nats, and their derivatives along v."""
    mask = scores.mask
    columns = columns_of_tokens(batch, tokenizer)
    text = columns.pop("text")
    return {
        **columns,
        "token": text,
        "logprob": scores.logprobs[mask].tolist(),
        "entropy": scores.entropies[mask].tolist(),
        "sampler_logprob": batch.sampler_logprobs
        and batch.padded("sampler_logprobs")[mask].tolist(),
        "logprob_slope": slopes and slopes.logprobs[mask].tolist(),
        "entropy_slope": slopes and slopes.entropies[mask].tolist(),
    }


def _statistics(measured: Measurement) -> dict[str, Any]:
    """The batches without their tokens, and the weights at each learning rate."""
    of_batch = ("lengths", "prompt_index", "prompt_keys", "rewards", "advantages")
    of_weights = ("ess_whole", "ess_integrated", "carriers", "khat", "verdict")
    batches: dict[str, Any] = {}
    for name, batch in {"E": measured.ready.E, "U": measured.ready.U}.items():
        values = {column: getattr(batch, column) for column in of_batch}
        batches[name] = {k: x.tolist() if isinstance(x, Tensor) else x for k, x in values.items()}
    weights = [
        {
            "eta": point.eta,
            "ess": point.ess,
            "ess_by_position": point.trust.ess_by_position.tolist(),
            "khat_bound": point.trust.bound,
            **{name: getattr(point.trust, name) for name in of_weights},
        }
        for point in measured.change.points
    ]
    return {"batches": batches, "weights": weights}


def _raw_tensors(measured: Measurement) -> dict[str, Tensor]:
    """The step and the scores of E as named tensors, none of which share memory.

    Returns:
        "direction.<parameter>", "preconditioner.…", "momentum.…", "decay.…", "gradient.…", and
        "E.logprobs", "E.entropies" and their derivatives along v as "E.d1_…", "E.d2_…".
    """
    step = measured.ready.step
    vectors = {"direction": step.direction, "preconditioner": step.preconditioner}
    tensors = {f"{k}.{n}": x for k, v in (vectors | step.components).items() for n, x in v.items()}
    for order, scores in enumerate(measured.change.sample.series):
        prefix = f"E.d{order}_" if order else "E."
        tensors[f"{prefix}logprobs"] = scores.logprobs
        tensors[f"{prefix}entropies"] = scores.entropies
    return {name: x.detach().cpu().contiguous().clone() for name, x in tensors.items()}
