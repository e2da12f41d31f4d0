"""A run folder with results that nothing measured, as large and as odd as a test wants it."""

import json

import numpy as np
import pandas as pd
from safetensors.numpy import save_file

from isentrope import Estimate, Result
from isentrope.results import encode as writing
from isentrope.run.evaluation_folder import (
    EvaluatedRow,
    EvaluationResult,
    RewardCounts,
    table_of,
)
from isentrope.run.places import METRICS, TABLE
from isentrope.system.files import write_json

PROVENANCE = {"isentrope": "0.1.0", "python": "3.11.7", "seeds": {"E": 0, "U": 1}}
UNIT = "nats per token"


def estimate(value, se=None, n=16, unit=UNIT, interval=True):
    se = abs(value) / 8 if se is None else se
    ends = (value - 2 * se, value + 2 * se) if interval else (None, None)
    content = {"value": value, "se": se, "ci_low": ends[0], "ci_high": ends[1], "n": n}
    return content | {"unit": unit, "method": "made up", "ess": None, "khat": None, "warnings": []}


def batch(sequences, prompts):
    return {
        "sequences": sequences,
        "prompt_draws": prompts,
        "distinct_prompts": prompts,
        "mean_length": 4.0,
        "longest": 4,
    }


def head(verb, name):
    precision = {"runtime_dtype": "float64"}
    return {
        "schema": f"isentrope/{verb}/1",
        "policy": {
            "name": name,
            "checkpoint": name,
            "optimizer": f"{name}/optimizer.pt",
            "trainable_tensors": 2,
            "trainable_parameters": 8,
            "temperature": 1.0,
            "device": "cpu",
            "precision": dict.fromkeys(("measuring", "updating", "sampling"), precision),
        },
        "batches": {"B_E": 64, "B_U": 4, "G": 2, "E": batch(64, 64), "U": batch(8, 4)},
        "estimator": {"functional": "per_token", "method": "prefix", "confidence": 0.95}
        | ({"order": 2, "unit": UNIT} if verb == "measure" else {}),
        "settings": {"keys": {}, "differs": [], "ignored": []},
        "step": {
            "objective": "dr_grpo",
            "learning_rate": 1e-3,
            "gradient_norm": 1.0,
            "clip_factor": 1.0,
            "direction_norm": 1.0,
            "matched_by": "sidecar",
            "param_groups": [],
            "order_confirmed": None,
        },
        "timing": {"total": 1.5},
        "provenance": PROVENANCE,
        "warnings": [],
    }


def sweep_row(eta, change, verdict="trust", **more):
    bar = None if verdict != "trust" else 0.2 * abs(change)
    content = {
        "eta": eta,
        "delta_h": change,
        "delta_h_se": 0.1 * abs(change),
        "delta_h_ci_low": None if bar is None else change - bar,
        "delta_h_ci_high": None if bar is None else change + bar,
        "first_order": -2.0 * eta,
        "first_order_se": 0.2 * eta,
        "second_order": 300 * eta**2,
        "second_order_se": 30 * eta**2,
        "residual": 0.0,
        "residual_se": 1e-6,
        "residual_ci_low": -2e-6,
        "residual_ci_high": 2e-6,
        "residual_verdict": "trust",
        "ess": 60.0,
        "ess_whole": 60.0,
        "ess_integrated": 60.0,
        "carriers": 10.0,
        "khat": 0.1,
        "verdict": verdict,
        "method": "prefix",
        "resampled": None,
        "first_over_change": estimate(-2.0 * eta / change, 0.01, unit="") if change else None,
    }
    return content | more


def measure(name="step_8", **more):
    content = head("measure", name)
    content["step"]["rate_of_interest"] = 1e-3
    content |= {
        "entropy": {
            "per_sequence": estimate(0.4, unit="nats per sequence"),
            "per_token": estimate(0.1),
        },
        "first_order": estimate(-2.0),
        "pathwise": estimate(-1.9),
        "second_order": estimate(300.0),
        "linear_range": estimate(6.7e-3, unit="η") | {"rate_over_range": 0.15},
        "sweep": [
            sweep_row(1e-5, -2e-5),
            sweep_row(1e-3, -1.7e-3),
            sweep_row(1e-2, 1e-2, "smooth"),
        ],
        "budget": {"total": -2.0, "momentum": -1.2, "decay": 0.0, "gradient": -0.8}
        | {"total_se": 0.2, "momentum_se": 0.1, "decay_se": 0.0, "gradient_se": 0.1},
        "checks": {
            "score_identity_z": 0.5,
            "score_identity_p": 1.0,
            "score_identity_verdict": "sound",
            "martingale_z": -0.2,
            "martingale_p": 1.0,
            "martingale_verdict": "sound",
            "rounding_floor": {
                "log_weight": 1e-9,
                "entropy_change": 1e-16,
                "smallest_eta": 1e-12,
            },
        },
    }
    return content | more


def influence(name="step_8", **more):
    parts = {"momentum": -1.2, "decay": 0.0, "baseline": -1.2, "gradient": -0.8, "total": -2.0}
    budget = {key: estimate(value) for key, value in parts.items()}
    shares = {"same_prompt": estimate(-0.5), "other_prompt": estimate(-0.3, 0.4)}
    content = head("influence", name) | {
        "how": "one pass",
        "groups": 8,
        "degrees_of_freedom": 7,
        "measured_on": "the 64 responses of E to 64 prompts",
        "entropy": budget | {"closure": 0.0, "unit": f"{UNIT} per η"},
        "reward": budget | {"closure": 0.0, "unit": "reward per η"},
        "reliability": {of: estimate(0.9, interval=False) for of in ("sequences", "tokens")},
        "shares": {"measured_on": "8 responses", "gradient": estimate(-0.8)} | shares,
    }
    return content | more


def tables(prompts, group, texts, seed=0):
    """Tables of sequences and tokens; `texts` are the tokens of every response."""
    draw, n, t = np.random.default_rng(seed), prompts * group, len(texts)
    values = draw.normal(size=(2, n, t)) ** 3 / 100
    advantage = np.tile(draw.normal(size=group), prompts)
    sums = values.sum(2)
    sequences = pd.DataFrame(
        {
            "sequence": range(n),
            "prompt": np.repeat(range(prompts), group),
            "key": [f"task/{k // group}" for k in range(n)],
            "length": t,
            "reward": (advantage > 0).astype(float),
            "advantage": advantage,
            "delta_h": sums[0],
            "delta_h_se": 0.1,
            "delta_j": sums[1],
            "delta_j_se": 0.1,
            "text": "".join(text or "" for text in texts),
        }
    )
    sequence, position = (index.ravel() for index in np.indices((n, t)))
    tokens = pd.DataFrame(
        {
            "sequence": sequence,
            "prompt": sequence // group,
            "position": position,
            "length": t,
            "token_id": position,
            "s": -1.0,
            "H": 0.5,
            "coefficient": 1.0,
            "reward": 1.0,
            "advantage": advantage[sequence],
            "delta_h": values[0].ravel(),
            "delta_h_se": 0.01,
            "delta_j": values[1].ravel(),
            "delta_j_se": 0.01,
            "text": list(texts) * n,
        }
    )
    return sequences, tokens


def kernel(name="step_8"):
    edges = {"lower": 0.5, "upper": 1.5, "effective_rank": 4.0}
    block = {
        "rows": 8,
        "columns": 8,
        "zero_rows": [],
        "structure": {
            of: {"entries": 8}
            | {"mean": estimate(1.0), "spread": estimate(1.0)}
            | {"mean_cosine": estimate(0.2), "rms_cosine": estimate(cosine)}
            for of, cosine in (("same_prompt", 0.7), ("cross_prompt", 0.1))
        },
        "spectrum": {
            "eigenvalues": [4.0, 2.0, 1.0, 0.5],
            "effective_rank": estimate(3.0),
            "shares": {"1": estimate(0.5)},
            "fitted_dimension": estimate(3.0),
            "participation": [2.0],
            "leading_carriers": [0],
            "norm_outliers": [],
            "nulls": [
                {"name": "all parameters", "dimension": 9.0, "above": None} | edges,
                {"name": "observed norms", "dimension": 3.0, "above": 2} | edges,
            ],
        },
    }
    return head("kernel", name) | {"preconditioned": True, "blocks": {"UU": block}}


def moved(name="step_8", columns=8):
    """The kernel of E's responses with U's, in two clusters."""
    parts = [
        {"members": columns // 2, "reward": reward, "weight": 0.0}
        | {"delta_h": estimate(change, unit="nats per sequence per η")}
        for reward, change in ((0.2, -0.1), (0.8, 0.1))
    ]
    block = {
        "rows": 6,
        "columns": columns,
        "singular": {"values": [2.0, 1.0], "effective_rank": estimate(1.8)}
        | {"shares": {}, "fitted_dimension": None, "null": None},
        "clusters": {"labels": [0] * columns, "order": list(range(columns)), "count": 2}
        | {"cophenetic_correlation": 0.9, "prompt_agreement": estimate(0.1), "parts": parts},
    }
    return head("kernel", name) | {"preconditioned": True, "blocks": {"EU": block}}


def noise(name="step_8"):
    scale = {"b_simple": estimate(12.0, interval=False, unit="prompts")}
    kinds = dict.fromkeys(("gradient", "preconditioned", "entropy"), scale)
    return head("noise", name) | kinds


def audit(name="step_8"):
    row = {"spearman": estimate(0.4), "overlap@0.02": estimate(0.5, interval=False)}
    proxies = {"token_covariance": row, "advantage": row, "top_entropy": row}
    of = {"items": 99, "proxies": proxies | {"measured": {}}}
    reliability = {"tokens": estimate(0.9, interval=False)}
    more = {"off_policy": False, "reliability": reliability}
    return head("audit", name) | more | {"tokens": of, "sequences": of}


def write(folder, verb, name, results, **parquet):
    here = folder / "measurements" / f"{verb}_{name}"
    here.mkdir(parents=True)
    (here / "results.json").write_text(json.dumps(results), encoding="utf-8")
    for table, content in parquet.items():
        content.to_parquet(here / f"{table}.parquet")
    return here


def loaded(folder, content, **parquet):
    """The result with this content, and the folder it was read from."""
    verb = content["schema"].split("/")[1]
    made = write(folder, verb, content["policy"]["name"], content, **parquet)
    return Result.load(made), made


def write_log(folder, lines, name="metrics.jsonl"):
    """A log of a run, and its folder."""
    (folder / "logs").mkdir(parents=True, exist_ok=True)
    (folder / "logs" / name).write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def make_run(folder, prompts=4, group=2, texts=("7", "+", "5", "<eos>"), steps=(8, 16)):
    """A whole run: training log, every verb at every step."""
    lines = [{"step": k + 1, "reward": 0.5 + k / 100, "entropy": 0.2 - k / 200} for k in range(20)]
    write_log(folder, lines)
    for step in steps:
        name = f"step_{step}"
        sequences, tokens = tables(prompts, group, texts, step)
        write(folder, "measure", name, measure(name))
        write(folder, "influence", name, influence(name), sequences=sequences, tokens=tokens)
        write(folder, "audit", name, audit(name))
        here = write(folder, "kernel", name, kernel(name)) / "UU"
        here.mkdir()
        columns = ["prompt", "key", "length", "reward", "advantage"]
        sequences[columns].assign(identity="1 2").to_parquet(here / "rows.parquet")
        rows = np.random.default_rng(step).normal(size=(len(sequences), 6))
        save_file({"matrix": rows @ rows.T}, here / "kernel.safetensors")
    return folder


def write_evaluation(folder, run, steps=(8, 16), groups=()):
    """The folder that `isentrope evaluate` writes for checkpoints of a run."""
    folder.mkdir(parents=True)
    done = [evaluated(step, groups) for step in steps]
    for result in done:
        (folder / result.checkpoint).mkdir()
        write_json(folder / result.checkpoint / METRICS, writing.encode(result))
    table_of(done).to_csv(folder / TABLE)
    config = f"checkpoint:\n  checkpoint_path: {run}/training_state/step_*\n"
    (folder / "config.yaml").write_text(config)
    return folder


def evaluated(step, groups=()):
    numbers = {"pass_at_1": 0.5 + step / 100, "pass_at_8": 0.9, "reward": 0.5 + step / 100}
    numbers["entropy_per_token"] = 0.2 - step / 100
    metrics = {
        name: Estimate(x, 0.02, x - 0.04, x + 0.04, 64, "", "") for name, x in numbers.items()
    }
    rows = tuple(
        EvaluatedRow(decoding, 64, 8, metrics, RewardCounts((0.0, 1.0), (1,)), group)
        for decoding in ("sampled", "greedy")
        for group in (None, *groups)
    )
    task = {"dataset": "addition", "split": "test", "temperature": 1.0, "max_new_tokens": 4}
    name = f"step_{step}"
    return EvaluationResult(
        schema="isentrope/evaluate/1", checkpoint=name, path=name, step=step, rows=rows, **task
    )
