"""Who moves the entropy of the toy policy? Five checkpoints along training, three seeds.

    python -m studies.toy_attribution

For each seed it fine-tunes and trains (configs/sft_toy.yaml, configs/train_toy.yaml with a
checkpoint every 8 steps); at each checkpoint it draws E (1024 held-out prompts) and U (64 prompts
x 8), measures the influence of every token with its shares, the Fisher kernel of U with its
structure, and audits the proxies. Numbers are means over seeds ± standard error over seeds (n = 3).
At one checkpoint the noise scale is measured from 16, 64 and 256 prompt groups.

Writes tables.md in the run folder, which docs/results/toy_attribution.md quotes and discusses.
About half an hour on one core; what is done is kept in the folder and not done again.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

import isentrope as ise
from isentrope.checkpoint.find import find_with_optimizers
from isentrope.checkpoint.in_force import SettingsInForce
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.train import SftConfig, TrainConfig
from isentrope.nouns.columns import text
from isentrope.results.header import Header
from isentrope.system.formatting import TERMINAL, finite
from isentrope.system.progress import Clock
from isentrope.verbs.audit import find_audit
from isentrope.verbs.batches import at_precision
from isentrope.verbs.influence import influence_of, prompt_shares
from isentrope.verbs.kernel import find_kernel
from isentrope.verbs.prepare import prepare_checkpoint
from isentrope.verbs.sft import sft
from isentrope.verbs.train import train
from validation.toy_training import QUIET

STEPS = (8, 16, 24, 32, 40)
SEEDS = (0, 1, 2)
UNLIKELY = -2.0  # nats: a token below it was drawn against the odds


def checkpoints(folder: Path, seed: int) -> Path:
    """Fine-tune and train a seed, unless it is there; the folder of its checkpoints."""
    base, trained = folder / f"sft_{seed}", folder / f"train_{seed}"
    if not (base / "model").exists():
        settings = [f"fine_tuning.seed={seed}", f"output.directory={base}"]
        sft(load_config("configs/sft_toy.yaml", [*settings, *QUIET], SftConfig))
    if not trained.exists():
        settings = [
            f"model.path={base / 'model'}",
            f"training.seed={seed}",
            "training.save_every=8",
        ]
        settings += [f"output.directory={trained}", "entropy_probe.enabled=false", *QUIET]
        train(load_config("configs/train_toy.yaml", settings, TrainConfig))
    return trained / "training_state"


HEADER = {"schema", "warnings", "timing", *(f.name for f in fields(Header))}


def configured(path: Path, B_E: int, B_U: int) -> MeasureConfig:
    """What is measured at a checkpoint."""
    return load_config(
        {
            "checkpoint": {"checkpoint_path": str(path)},
            "batch_config": {"dataset_name": "addition", "B_E": B_E, "B_U": B_U, "G": 8},
            "precision": {"runtime_dtype": "float32"},
            "sampling": {"max_new_tokens": 23},
            "analysis": {"share_responses": 4},
            "fisher_kernel": {"blocks": ["UU"]},
        }
    )


def prepared(config: MeasureConfig):
    """The one checkpoint of a configuration, with E and U."""
    (checkpoint,) = find_with_optimizers(config.checkpoint)
    return prepare_checkpoint(checkpoint, SettingsInForce(config), Clock())


def study(path: Path, B_E: int = 1024, B_U: int = 64) -> dict[str, Any]:
    """Everything that is asked of one checkpoint."""
    config = configured(path, B_E, B_U)
    ready = prepared(config)
    with at_precision(ready.policy, config.precision.measuring):
        table = influence_of(ready, tokens=True, reward=True)
        shares = prompt_shares(ready)
        kernel, audits = find_kernel(ready), find_audit(ready)
        said = {
            "entropy_per_token": ise.entropy(ready.policy, ready.E),
            "entropy": table.entropy.budget,
            "reward": table.reward.budget,
            "reliability": table.reliability,
            "shares": {k: x for k, x in vars(shares).items() if x is not None},
            "kernel": {k: x for k, x in kernel.to_dict().items() if k not in HEADER},
            "audit": {"tokens": audits.tokens.proxies, "sequences": audits.sequences.proxies},
            "who": who(table.to_frame("tokens")),
        }
    return plain(said)


def plain(content: Any) -> Any:
    """The same content with Estimates and results as dictionaries, and null for NaN."""
    if isinstance(content, ise.Estimate):
        return finite(content.to_dict())
    if isinstance(content, dict):
        return {key: plain(value) for key, value in content.items()}
    return finite(content)


def who(tokens: pd.DataFrame) -> dict[str, float]:
    """Which tokens hold the influence: sums over kinds of tokens, as parts of the gross Σ|δH|."""
    acting = tokens[tokens["coefficient"] != 0]
    moved, gross = acting["delta_h"], acting["delta_h"].abs().sum()
    falling = moved[moved < 0].sum()
    good, unlikely = acting["advantage"] > 0, acting["s"] < UNLIKELY
    kinds = {
        "unlikely, punished": unlikely & ~good,
        "unlikely, rewarded": unlikely & good,
        "likely, punished": ~unlikely & ~good,
        "likely, rewarded": ~unlikely & good,
    }
    few = max(1, round(0.02 * len(acting)))
    worst = acting.nsmallest(few, "delta_h")
    forking = acting["H"] >= acting["H"].quantile(0.8)
    by_prompt = acting.groupby("prompt")["delta_h"].sum()
    top = by_prompt.abs().nlargest(max(1, len(by_prompt) // 10)).index
    said = {f"part of {name}": moved[which].sum() / gross for name, which in kinds.items()}
    said |= {f"tokens {name}": which.mean() for name, which in kinds.items()}
    return {key: float(value) for key, value in said.items()} | {
        "net over gross": float(moved.sum() / gross),
        "of the fall, 2 % of tokens": float(worst["delta_h"].sum() / falling),
        "worst 2 %: punished": float((worst["advantage"] < 0).mean()),
        "worst 2 %: mean s": float(worst["s"].mean()),
        "worst 2 %: at a fork": float((worst["H"] >= acting["H"].quantile(0.8)).mean()),
        "gross at the 20 % forks": float(moved[forking].abs().sum() / gross),
        "gross of a tenth of the prompts": float(
            by_prompt[top].abs().sum() / by_prompt.abs().sum()
        ),
        "tokens": float(len(acting)),
    }


Read = Callable[[dict[str, Any]], float]


def _value(*keys: str) -> Read:
    def read(said: dict[str, Any]) -> float:
        for key in keys:
            said = said[key]
        value = said["value"] if isinstance(said, dict) else said
        return float("nan") if value is None else float(value)

    return read


def _proxy(of: str, proxy: str, statistic: str) -> Read:
    return _value("audit", of, proxy, statistic)


_UU = ("kernel", "blocks", "UU")
ROWS: dict[str, dict[str, Read]] = {
    "The step": {
        "h, nats per token": _value("entropy_per_token"),
        "δH₁ per η": _value("entropy", "total"),
        "of which momentum": _value("entropy", "momentum"),
        "of which gradient": _value("entropy", "gradient"),
        "δJ per η": _value("reward", "total"),
        "on U's own prompts: same-prompt share": _value("shares", "same_prompt"),
        "on U's own prompts: other-prompt share": _value("shares", "other_prompt"),
        "rank correlation of tokens with an infinite E, about": _value("reliability", "tokens"),
        "rank correlation of sequences with an infinite E, about": _value(
            "reliability", "sequences"
        ),
    },
    "Which tokens (signed sums over the gross Σ|δH|)": {
        "unlikely (s < −2), punished (A < 0)": _value("who", "part of unlikely, punished"),
        "unlikely, rewarded": _value("who", "part of unlikely, rewarded"),
        "likely, punished": _value("who", "part of likely, punished"),
        "likely, rewarded": _value("who", "part of likely, rewarded"),
        "share of tokens: unlikely, punished": _value("who", "tokens unlikely, punished"),
        "net over gross": _value("who", "net over gross"),
        "of the fall, in the 2 % most negative tokens": _value("who", "of the fall, 2 % of tokens"),
        "those: punished": _value("who", "worst 2 %: punished"),
        "those: mean s": _value("who", "worst 2 %: mean s"),
        "those: at the fifth with most H": _value("who", "worst 2 %: at a fork"),
        "gross at the fifth with most H": _value("who", "gross at the 20 % forks"),
    },
    "Which prompts": {
        "gross of a tenth of the prompts": _value("who", "gross of a tenth of the prompts"),
    },
    "Proxies against tokens: Spearman": {
        name: _proxy("tokens", name, "spearman")
        for name in (
            "token_covariance",
            "discriminator",
            "centred_discriminator",
            "surprisal_advantage",
            "advantage",
            "entropy",
        )
    },
    "Proxies against tokens: Pearson": {
        name: _proxy("tokens", name, "pearson")
        for name in ("token_covariance", "discriminator", "surprisal_advantage")
    },
    "Proxies against tokens: overlap of the top 2 % (by size)": {
        name: _proxy("tokens", name, "overlap@0.02")
        for name in ("token_covariance", "discriminator", "surprisal_advantage", "top_entropy")
    },
    "The kernel (U × U, with P)": {
        "cosine, same prompt (rms)": _value(*_UU, "structure", "same_prompt", "rms_cosine"),
        "cosine, other prompts (rms)": _value(*_UU, "structure", "cross_prompt", "rms_cosine"),
        "cosine, right with right, same prompt": _value(
            *_UU, "structure", "same_prompt right/right", "mean_cosine"
        ),
        "cosine, right with wrong, same prompt": _value(
            *_UU, "structure", "same_prompt right/wrong", "mean_cosine"
        ),
        "effective rank of 512": _value(*_UU, "spectrum", "effective_rank"),
        "|K|² on the diagonal": _value(*_UU, "block_model", "diagonal"),
        "|K|² in 5 eigenpairs beyond the blocks": _value(*_UU, "block_model", "low_rank"),
        "clusters = prompts (adjusted Rand)": _value(*_UU, "clusters", "prompt_agreement"),
    },
    "Truncated kernels against the full one, by response (Spearman)": {
        name: _value("kernel", "truncations", name, "spearman")
        for name in ("diagonal", "same_prompt", "rank 1", "rank 5", "rank 20")
    },
}


def over_seeds(values: list[float]) -> str:
    """Mean ± standard error over seeds."""
    x = np.array(values)
    if len(x) == 1:
        return f"{x[0]:.3g}"
    return TERMINAL.with_error(float(x.mean()), float(x.std(ddof=1)) / len(x) ** 0.5)


def noise_table(path: Path, groups: tuple[int, ...] = (16, 64, 256)) -> str:
    """B_simple at one checkpoint from batches of several sizes, drawn apart."""
    lines = [
        "| prompt groups | |G|² | tr Σ | B_simple, prompts | interval |",
        "|---|---|---|---|---|",
    ]
    for k, n in enumerate(groups):
        config = configured(path, 16, n)
        batch = config.batch_config.model_copy(update={"seed": 100 + 10 * k})
        ready = prepared(config.model_copy(update={"batch_config": batch}))
        with at_precision(ready.policy, config.precision.measuring):
            found = ise.noise_scale(ready.policy, ready.U, token_weights=ready.step.token_weights)
        b = found.b_simple
        lines.append(
            f"| {n} | {text(found.gradient_square)} | {text(found.trace)} | {text(b)} | "
            f"[{b.ci_low:.0f}, {b.ci_high:.0f}] |"
        )
    return "\n".join(lines)


def main() -> None:
    """Do what is not done yet, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--run", default="runs/toy_attribution", help="(%(default)s)")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    parser.add_argument("--steps", type=int, nargs="+", default=STEPS)
    asked = parser.parse_args()
    folder = Path(asked.run)
    torch.set_num_threads(1)
    found: dict[int, list[dict[str, Any]]] = {step: [] for step in asked.steps}
    for seed in asked.seeds:
        states = checkpoints(folder, seed)
        for step in asked.steps:
            kept = folder / f"study_{seed}_{step}.json"
            if not kept.exists():
                kept.write_text(json.dumps(study(states / f"step_{step}")))
            found[step].append(json.loads(kept.read_text()))
            print(seed, step, flush=True)
    noise = folder / "noise.md"
    if not noise.exists():
        noise.write_text(noise_table(checkpoints(folder, 0) / "step_24"))
    head = f"| | {' | '.join(f'step {step}' for step in asked.steps)} |"
    tables = []
    for title, rows in ROWS.items():
        lines = [f"## {title}", "", head, "|" + "---|" * (len(asked.steps) + 1)]
        for name, read in rows.items():
            cells = [over_seeds([read(said) for said in found[step]]) for step in asked.steps]
            lines.append(f"| {name} | {' | '.join(cells)} |")
        tables.append("\n".join(lines))
    page = TEMPLATE.format(today=date.today(), tables="\n\n".join(tables), noise=noise.read_text())
    out = folder / "tables.md"
    out.write_text(page)
    print(f"Wrote {out}")


TEMPLATE = """# Who moves the entropy of the toy policy

`python -m studies.toy_attribution`, {today}, one CPU thread, float32.

{tables}

## Noise scale at step 24 of seed 0, from batches of three sizes

{noise}
"""


if __name__ == "__main__":
    main()
