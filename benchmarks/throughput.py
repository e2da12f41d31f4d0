"""What sharing prompts, packing and torch.compile save, each as a ratio in one process.

    python -m benchmarks.throughput sharing --case GSM8K-like --precision float64
    python -m benchmarks.throughput packing
    python -m benchmarks.throughput compile --order 1        needs gcc

Rows are printed; they are put together in docs/results/throughput.md.

Random weights with LoRA r 16. Lengths are drawn from the deciles of GSM8K's questions and answers
(SmolLM2's tokenizer; 40 tokens of a template before each question), or are those of the toy. Both
ways alternate, and process time is taken on one thread.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from torch.func import functional_call
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from benchmarks.cost import peak_megabytes, ratio, timed
from isentrope.models.batching import MicroBatch, micro_batches, tokens_read
from isentrope.nouns.vectors import Vector
from isentrope.policy import scoring
from isentrope.policy.gradient import score_jvp
from isentrope.policy.head import Scorer
from isentrope.policy.language_model import Policy

QUESTIONS = (20, 37, 42, 47, 51, 56, 61, 68, 76, 90, 200)
ANSWERS = (20, 65, 78, 90, 101, 113, 128, 144, 165, 199, 250)
"""Tokens: the deciles, between the shortest and the longest that are drawn here."""

TEMPLATE_TOKENS = 40
MAX_TOKENS = 8192


@dataclass(frozen=True)
class Case:
    """A model, and how long prompts and responses are."""

    words: str
    config: dict[str, Any]
    prompts: tuple[int, ...]
    responses: tuple[int, ...]
    template: int = 0
    groups: int = 4

    def policy(self, precision: str) -> Policy:
        torch.manual_seed(0)
        model = Qwen2ForCausalLM(Qwen2Config(**self.config))
        model = get_peft_model(model, LoraConfig(r=16, target_modules="all-linear")).eval()
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        return Policy(
            model, precision=precision, eos_token_id=1, pad_token_id=0, max_tokens=MAX_TOKENS
        )

    def rollouts(self, groups: int, size: int, seed: int = 0) -> ise.Rollouts:
        """So many prompts with so many responses each, of random tokens."""
        draw = random.Random(seed)

        def tokens(n: int) -> Tensor:
            return torch.tensor([draw.randrange(2, self.config["vocab_size"]) for _ in range(n)])

        prompts = [tokens(self.template + between(self.prompts, draw)) for _ in range(groups)]
        index = torch.arange(groups).repeat_interleave(size)
        responses = [tokens(between(self.responses, draw)) for _ in index]
        return ise.Rollouts([prompts[k] for k in index], responses, index)


CASES = {
    "GSM8K-like": Case(
        "width 256, 4 layers, vocabulary 8,192; 4 groups of 8",
        {
            "vocab_size": 8192,
            "hidden_size": 256,
            "intermediate_size": 1024,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
        },
        QUESTIONS,
        ANSWERS,
        TEMPLATE_TOKENS,
    ),
    "toy": Case(
        "width 128, 4 layers, vocabulary 20; 32 groups of 8, prompts of 8, responses of 8 to 16",
        {
            "vocab_size": 20,
            "hidden_size": 128,
            "intermediate_size": 344,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
        },
        (8, 8),
        (8, 16),
        groups=32,
    ),
}


def between(deciles: Sequence[int], draw: random.Random) -> int:
    """A length whose distribution is the straight line between these quantiles."""
    k = draw.randrange(len(deciles) - 1)
    return draw.randint(deciles[k], deciles[k + 1])


@contextmanager
def whole_sequences() -> Generator[None]:
    """Every sequence is read with its own prompt."""

    def plain(policy: Policy, rollouts: ise.Rollouts, max_tokens: int, padding: int) -> Any:
        return micro_batches(rollouts, max_tokens, padding=padding)

    own = scoring.scoring_batches
    scoring.scoring_batches = plain
    try:
        yield
    finally:
        scoring.scoring_batches = own


def directions(policy: Policy, count: int) -> list[Vector]:
    generator = torch.Generator().manual_seed(1)
    return [
        {n: torch.randn(p.shape, generator=generator).double() for n, p in policy.theta.items()}
        for _ in range(count)
    ]


def numbers(found: Any) -> list[Tensor]:
    """All tensors of what a pass gives."""
    if isinstance(found, Tensor):
        return [found]
    if isinstance(found, scoring.Scores):
        return [found.logprobs, found.entropies]
    if isinstance(found, ise.Influence):
        return [found.entropy.sequences]
    return [x for part in found for x in numbers(part)]


def passes(case: Case, policy: Policy) -> dict[str, Callable[[], Any]]:
    """Over a batch of groups; influence has an E of single responses, as it is sampled.

    The two longest are taken at one precision each.
    """
    U = case.rollouts(case.groups, 8)
    v, *more = directions(policy, 4)
    found: dict[str, Callable[[], Any]] = {
        "scores": lambda: scoring.score(policy, U),
        "first derivative": lambda: scoring.score_along(policy, U, v, 1),
        "slopes along 4 directions": lambda: score_jvp(policy, U, [v, *more]),
    }
    if policy.precision.runtime_dtype == "float64":
        return found | {"first and second derivative": lambda: scoring.score_along(policy, U, v, 2)}
    E = case.rollouts(case.groups * 8, 1, seed=1)
    longest = int(U.lengths.max())
    U = U.with_columns(advantages=torch.randn(len(U)).double(), max_new_tokens=longest)
    trained = [p for p in policy.model.parameters() if p.requires_grad]
    step = ise.optimizer_step(policy, U, torch.optim.AdamW(trained))
    found["influence of tokens, 4 groups"] = lambda: ise.influence(
        policy, E, U, step, ise.InfluenceOptions(groups=4)
    )
    return found


def sharing_rows(name: str, precision: str, repetitions: int) -> list[str]:
    """A row a pass: time and memory by that of whole sequences, and the largest difference."""
    policy, rows = CASES[name].policy(precision), []
    for what, job in passes(CASES[name], policy).items():

        def plain(job: Callable[[], Any] = job) -> Any:
            with whole_sequences():
                return job()

        pairs = zip(numbers(job()), numbers(plain()), strict=True)
        gap = max(float((x - y).abs().max() / max(1.0, float(y.abs().max()))) for x, y in pairs)
        seconds = timed({"plain": plain, "shared": job}, repetitions, "cpu")
        memory = ""
        if what in ("scores", "slopes along 4 directions"):
            memory = f"{peak_megabytes(job) / peak_megabytes(plain):.2f}"
        cost = ratio(seconds["shared"], seconds["plain"])
        rows.append(f"| {name} | {precision} | {what} | {cost} | {memory} | {gap:.0e} |")
    return rows


def packing_rows() -> list[str]:
    """The share of padded tokens that is padding, and how many calls of the model there are."""
    case, rows = CASES["GSM8K-like"], []
    for groups, size in ((256, 1), (32, 8)):
        shares, calls = [], []
        for seed in range(5):
            U = case.rollouts(groups, size, seed)
            batches = micro_batches(U, MAX_TOKENS)
            read = sum(b.input_ids.numel() for b in batches)
            shares.append(1 - sum(tokens_read(U)) / read)
            calls.append(len(batches))
        share, count = statistics.mean(shares), statistics.mean(calls)
        rows.append(f"| {groups} × {size} | {share:.1%} | {count:.0f} |")
    return rows


def compiled_row(name: str, precision: str, order: int, repetitions: int) -> str:
    """A row about torch.compile of a pass over the micro-batches of two groups or 32 toy ones."""
    case = CASES[name]
    policy = case.policy(precision)
    U = case.rollouts(2 if case.groups == 4 else case.groups, 8)
    batches = micro_batches(U, 2048)
    names, (v,) = policy.scorer.inner_names, directions(policy, 1)
    theta = {names[n]: p for n, p in policy.theta.items()}
    along = {names[n]: v[n] for n in policy.theta}

    def one(batch: MicroBatch, e: Tensor, unit: Tensor) -> Any:
        def at(e: Tensor) -> Any:
            moved = {n: (p.double() + e * along[n]).to(p.dtype) for n, p in theta.items()}
            arguments = (Scorer.scores, batch, policy.softmax)
            return functional_call(policy.scorer, moved, arguments)

        def slope(e: Tensor) -> Any:
            return torch.func.jvp(at, (e,), (unit,))

        if order == 2:
            return torch.func.jvp(slope, (e,), (unit,))
        return slope(e) if order else at(e)

    def run(function: Callable[..., Any]) -> list[Any]:
        zero = torch.zeros((), dtype=torch.float64)
        with torch.no_grad(), policy.precision.active():
            return [function(b, zero, torch.ones_like(zero)) for b in batches]

    compiled = torch.compile(one, dynamic=True)
    start = time.perf_counter()
    try:
        run(compiled)
    except Exception as error:  # the page says so
        first = str(error).strip().splitlines()[0][:80]
        return f"| {name} | {precision} | {order} | fails: {type(error).__name__}: {first} | |"
    made = time.perf_counter() - start
    seconds = timed({"plain": lambda: run(one), "it": lambda: run(compiled)}, repetitions, "cpu")
    cost = ratio(seconds["it"], seconds["plain"])
    return f"| {name} | {precision} | {order} | {cost} | {made:.0f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("what", choices=("sharing", "packing", "compile"))
    parser.add_argument("--repetitions", type=int, default=2)
    parser.add_argument("--case", choices=list(CASES), default="GSM8K-like")
    parser.add_argument("--precision", choices=("float32", "float64"), default="float64")
    parser.add_argument("--order", type=int, choices=(0, 1, 2), default=0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    if args.what == "sharing":
        rows = sharing_rows(args.case, args.precision, args.repetitions)
    elif args.what == "packing":
        rows = packing_rows()
    else:
        rows = [compiled_row(args.case, args.precision, args.order, args.repetitions)]
    print(f"{date.today()}, torch {torch.__version__}", *rows, sep="\n")


if __name__ == "__main__":
    main()
