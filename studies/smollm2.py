"""Do the claims about the toy hold for three runs on a real language model?

    python -m studies.smollm2 runs/smollm2_? --evaluation runs/smollm2_test

reads the runs of `configs/train_smollm2_sentence.yaml`, their `influence` at an early and a late
step, and the evaluation before and after, and prints the tables of
docs/results/smollm2_sentence.md. ± is half of the 95 % t interval over the seeds. Of three seeds it
is 2.5 times their standard deviation: wide, and itself uncertain.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd

from isentrope.nouns.freedom import t_quantile
from isentrope.system.formatting import TERMINAL

STEPS = (20, 60)
"""The early and the late checkpoint."""
LAST = 61
"""The last step with a reading of the probe that every run has."""
TOP = 0.02
"""Share of the tokens that a list has."""

Numbers = dict[str, float]


@dataclass(frozen=True)
class Claim:
    """A claim about the toy, as a number that is between two bounds.

    Attributes:
        words: The claim.
        number: Name of the number.
        toy: What the toy has.
        low, high: Bounds of the number where the claim is true.
    """

    words: str
    number: str
    toy: str
    low: float = -math.inf
    high: float = math.inf

    def verdict(self, values: Sequence[float]) -> str:
        """Whether the t interval over the seeds is between the bounds, outside, or both."""
        low, high = interval(values)
        if self.low < low and high < self.high:
            return "holds"
        return "**does not hold**" if high < self.low or low > self.high else "not resolved"


OF_TOKENS = (
    Claim("a few tokens carry the fall", "fall, share of the 2 % most negative", ".67–.89", 0.5),
    Claim("these are mostly of punished responses", "those, punished", ".59–.71", 0.5),
    Claim("nearly all stand where H is large", "those, in the fifth with most H", ".96–.99", 0.8),
    Claim("the criterion is not the whole story", "fall, share of its 2 %", ".38–.71", high=0.8),
    Claim("likely rewarded tokens cost entropy too", "their δH₁ per η", "negative", high=0),
    Claim("the covariance ranks tokens poorly", "rank correlation", ".12–.39", high=0.5),
)
CLAIMS = (
    Claim("entropy falls", "held out, sampled: change of entropy_per_token", "−.10", high=0),
    Claim("reward rises", "held out, sampled: change of pass_at_1", "+.5", 0),
    Claim("first order predicts the step", "Σ ηδH₁ over Σ ΔH", "1.09", 0.8, 1.25),
    Claim("most of it is momentum", "momentum's share of Σ ηδH₁", ".58–.72", 0.5),
    Claim("a gradient kept for 20 steps has the sign", "share of right signs", "1.00", 0.8),
    Claim("first order promises too much reward", "Σ ηδJ₁ − Σ ΔJ", "2–4 times ΔJ", 0),
    *(
        Claim(c.words, f"step {step}: {c.number}", c.toy, c.low, c.high)
        for c in OF_TOKENS
        for step in STEPS
    ),
    Claim("the covariance finds the large tokens better", "late − early overlap", ".34 → .76", 0),
)
"""Fixed before the numbers were read."""


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Ends of the t interval; infinite where all values are equal and the spread is unknown."""
    mean, n = sum(values) / len(values), len(values)
    if len(set(values)) < 2:
        return -math.inf, math.inf
    sd = math.sqrt(sum((x - mean) ** 2 for x in values) / (n - 1))
    half = t_quantile(n - 1, 0.95) * sd / math.sqrt(n)
    return mean - half, mean + half


def over_seeds(values: Sequence[float]) -> str:
    """The mean with half of its t interval where there is one, and the values."""
    low, high = interval(values)
    each = ", ".join(f"{x:.3g}" for x in values)
    if math.isinf(high):
        return each
    return f"{TERMINAL.with_error((low + high) / 2, (high - low) / 2)} ({each})"


def of_log(log: pd.DataFrame) -> Numbers:
    """What the log of a run says of entropy and reward."""
    read = log[log["probe/first_order"].notna()]
    later, kept = read.iloc[1:], log["probe/kept_first_order"]
    predicted = log["probe/first_order"].fillna(kept)[log.index < read.index[-1]]
    first, entropy = read["probe/first_order"].sum(), read["price/entropy"]
    reward = read["price/reward"].sum()
    numbers = {
        "training reward, first ten steps": log["reward"].head(10).mean(),
        "training reward, last ten steps": log["reward"].tail(10).mean(),
        "h at the first reading": entropy.iloc[0],
        "h at the last reading": entropy.iloc[-1],
        "change of h between the two": entropy.iloc[-1] - entropy.iloc[0],
        "the same, predicted step by step": predicted.sum(),
        "Σ ηδH₁ over Σ ΔH": first / read["probe/change"].sum(),
        "momentum's share of Σ ηδH₁": later["probe/momentum"].sum()
        / later["probe/first_order"].sum(),
        "share of right signs": (kept * later["probe/first_order"] > 0)[later.index].mean(),
        "Σ ηδJ₁": reward,
        "Σ ΔJ": read["price/reward_change"].sum(),
        "Σ ηδJ₁ − Σ ΔJ": reward - read["price/reward_change"].sum(),
        "reward for a nat, Σ ηδJ₁ / −Σ ηδH₁": -reward / first,
    }
    for column in (c for c in read if c.startswith("price/at_") and c.endswith("/entropy")):
        place = column.removesuffix("/entropy")
        name = place.removeprefix("price/at_").replace("_", " ")
        for words, key, whole in (
            ("h", "entropy", entropy.sum()),
            ("Σ ηδH₁", "first_order", first),
            ("Σ ηδJ₁", "reward", reward),
        ):
            numbers[f"{name}: share of {words}"] = read[f"{place}/{key}"].sum() / whole
    return numbers


def of_tokens(tokens: pd.DataFrame, result: dict[str, Any]) -> Numbers:
    """What the influence of a step says of tokens."""
    acting = tokens[tokens["coefficient"] != 0]
    delta, advantage = acting["delta_h"], acting["advantage"]
    size = max(1, round(TOP * len(acting)))
    top = acting.loc[delta.nsmallest(size).index]
    covariance = (acting["s"] - acting["s"].mean()) * (advantage - advantage.mean())
    common = set(delta.abs().nlargest(size).index) & set(covariance.abs().nlargest(size).index)
    classes, total = result["classes"]["tokens"], result["entropy"]["total"]["value"]
    parts = {name: part["delta_h"]["value"] for name, part in classes["parts"].items()}
    return {
        "δH₁ per η": total,
        "of it momentum": result["entropy"]["momentum"]["value"],
        "of it gradient": classes["gradient"]["value"],
        "fall, share of the 2 % most negative": top["delta_h"].sum() / delta[delta < 0].sum(),
        "those, punished": (top["advantage"] < 0).mean(),
        "those, in the fifth with most H": (top["H"] >= acting["H"].quantile(0.8)).mean(),
        "fall, share of its 2 %": classes["criterion"][str(TOP)]["selected"]["fall"]["value"],
        "unlikely and punished, δH₁ per η": _sum(parts, "unlikely, punished"),
        "their δH₁ per η": _sum(parts, "likely, rewarded"),
        "overlap with the covariance": len(common) / size,
        "rank correlation": covariance.corr(-delta, method="spearman"),
        "reliability of the ranking": result["reliability"]["tokens"]["value"],
    }


def _sum(parts: Numbers, beginning: str) -> float:
    return sum(value for name, value in parts.items() if name.startswith(beginning))


def evaluated(folder: Path) -> tuple[str, list[Numbers]]:
    """A table of the evaluation, and the changes of each seed: its first row is the start."""
    frame = pd.read_csv(folder / "consolidated_metrics.csv")
    columns = ["pass_at_1", "pass_at_4", "entropy_per_token", "forking_entropy"]
    lines = ["| | decoding | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for row in frame.to_dict("records"):
        cells = [
            "" if pd.isna(row.get(c)) else TERMINAL.with_error(row[c], row[f"{c}_se"])
            for c in columns
        ]
        lines.append(f"| {row['checkpoint']} | {row['decoding']} | " + " | ".join(cells) + " |")
    changes: list[Numbers] = [{} for _ in range(frame["checkpoint"].nunique() - 1)]
    for decoding, rows in frame.groupby("decoding"):
        for seed, (_, row) in enumerate(rows.iloc[1:].iterrows()):
            for column in (c for c in columns if not pd.isna(row[c])):
                name = f"held out, {decoding}: change of {column}"
                changes[seed][name] = row[column] - rows.iloc[0][column]
    return "\n".join(lines), changes


def shown_tokens(tokens: pd.DataFrame, responses: int = 6, marked: float = 0.2) -> str:
    """The responses that lower entropy most, with δH₁ of their tokens where it is large."""
    totals = tokens.groupby("sequence")["delta_h"].sum().nsmallest(responses)
    largest = tokens["delta_h"].abs().max()
    lines = []
    for sequence, total in totals.items():
        rows = tokens[tokens["sequence"] == sequence].sort_values("position").to_dict("records")
        text = "".join(
            row["text"].replace("\n", "⏎")
            + (f"[{row['delta_h']:+.2g}]" if abs(row["delta_h"]) > marked * largest else "")
            for row in rows
        )
        lines.append(f"A = {rows[0]['advantage']:+.2f}, Σ δH₁ = {total:+.2f}: {text}")
    return "\n".join(lines)


def read_run(folder: Path) -> tuple[Numbers, str]:
    """The numbers of a run, and its tokens as text."""
    lines = (folder / "logs" / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    numbers = of_log(pd.DataFrame([json.loads(x) for x in lines]).set_index("step").loc[:LAST])
    text = ""
    for step in STEPS:
        place = folder / "measurements" / f"influence_step_{step}"
        if not (place / "results.json").exists():
            continue
        tokens = pd.read_parquet(place / "tokens.parquet")
        result = json.loads((place / "results.json").read_text(encoding="utf-8"))
        numbers |= {f"step {step}: {k}": x for k, x in of_tokens(tokens, result).items()}
        text += f"{folder.name}, step {step}\n{shown_tokens(tokens)}\n\n"
    early, late = (numbers.get(f"step {s}: overlap with the covariance") for s in STEPS)
    if early is not None and late is not None:
        numbers["late − early overlap"] = late - early
    return numbers, text


def tables(seeds: Sequence[Numbers]) -> str:
    """The claims with their verdicts, and then all numbers, over seeds."""
    found = {name: [x[name] for x in seeds if name in x] for one in seeds for name in one}
    lines = ["| claim, on the toy | number | toy | here | |", "|---|---|---|---|---|"]
    for claim in (c for c in CLAIMS if c.number in found):
        values = found[claim.number]
        cells = [claim.words, claim.number, claim.toy, over_seeds(values), claim.verdict(values)]
        lines.append(f"| {' | '.join(cells)} |")
    lines += ["", "| number | over seeds |", "|---|---|"]
    return "\n".join(lines + [f"| {name} | {over_seeds(x)} |" for name, x in found.items()])


def main(arguments: Sequence[str] | None = None, say: Callable[[str], None] = print) -> None:
    """Print the tables."""
    parser = argparse.ArgumentParser(prog="python -m studies.smollm2")
    parser.add_argument("runs", type=Path, nargs="+", help="run folders, one per seed")
    parser.add_argument("--evaluation", type=Path, help="folder of the evaluation")
    options = parser.parse_args(arguments)
    runs = [read_run(folder) for folder in options.runs]
    seeds = [numbers for numbers, _ in runs]
    if options.evaluation:
        table, changes = evaluated(options.evaluation)
        seeds = [{**change, **own} for change, own in zip(changes, seeds, strict=True)]
        say(table + "\n")
    say(tables(seeds) + "\n")
    say("".join(text for _, text in runs))


if __name__ == "__main__":
    main()
