"""Attention in small blocks on a CPU, against the blocks that accelerators have.

    python -m benchmarks.attention

A pass through the decoder of a random model, with blocks of 2**22 attention weights and with blocks
of 2**25, by turns in one process: forward mode along one direction, and a backward pass. Times are
medians of paired ratios, with their range.

Writes docs/results/attention.md.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

from isentrope.models import attention
from isentrope.models.batching import micro_batches
from isentrope.nouns.forward_mode import derivatives_at_zero
from isentrope.nouns.rollouts import Rollouts
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from validation.origin import write_results

CASES = (
    ("8 responses of 300 tokens, 4 heads", 8, 300, 4),
    ("27 responses of 300 tokens, 14 heads", 27, 300, 14),
    ("1 response of 4,096 tokens, 4 heads", 1, 4096, 4),
    ("1 response of 8,192 tokens, 1 head", 1, 8192, 1),
)
ROUNDS = 5
SMALL, LARGE = attention.WEIGHTS_OF_CPU, attention.WEIGHTS_HELD


def policy_of(heads: int, precision: str) -> Policy:
    """One layer of random weights, all but the embeddings trained."""
    torch.manual_seed(0)
    config = Qwen2Config(
        vocab_size=512,
        hidden_size=32 * heads,
        intermediate_size=64 * heads,
        num_hidden_layers=1,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        max_position_embeddings=8192,
    )
    model: Any = Qwen2ForCausalLM(config).eval()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("proj" in name)
    return Policy(model, precision=precision)


def passes(policy: Policy, sequences: int, tokens: int) -> dict[str, Callable[[], object]]:
    """The two passes over a batch."""
    ids = torch.randint(512, (sequences, tokens))
    rollouts = Rollouts(list(ids[:, :1]), list(ids[:, 1:]), torch.arange(sequences))
    (batch,) = micro_batches(rollouts, sequences * tokens)
    v = {n: torch.randn(p.shape, dtype=torch.float64) for n, p in policy.theta.items()}
    weights = torch.ones(rollouts.mask.shape, dtype=torch.float64)
    policy.max_tokens = sequences * tokens

    def forward() -> object:
        return derivatives_at_zero(
            lambda e: policy.packed_hidden(batch, policy.parameters_along(v, e)), 1
        )

    return {
        "forward mode": forward,
        "backward": lambda: weighted_gradient(policy, rollouts, weights),
    }


def seconds(run: Callable[[], object], weights: int) -> float:
    """Of one pass, in blocks of so many weights."""
    attention.WEIGHTS_OF_CPU = weights
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def main() -> None:
    """Time all cases and write the page."""
    torch.set_num_threads(1)
    rows = []
    for words, sequences, tokens, heads in CASES:
        for precision in ("float64", "float32"):
            policy = policy_of(heads, precision)
            for name, run in passes(policy, sequences, tokens).items():
                run()
                ratios = [seconds(run, SMALL) / seconds(run, LARGE) for _ in range(ROUNDS)]
                middle = statistics.median(ratios)
                rows.append(
                    f"| {words} | {precision} | {name} | {middle:.2f} | "
                    f"{min(ratios):.2f} to {max(ratios):.2f} |"
                )
                print(rows[-1], flush=True)
    page = TEMPLATE.format(today=date.today(), rounds=ROUNDS, table="\n".join(rows))
    write_results(Path("docs/results/attention.md"), page)


TEMPLATE = """# Attention in small blocks on a CPU

`python -m benchmarks.attention`, {today}, one thread. Time of a pass in blocks of 2²² attention
weights, which a CPU has, divided by its time in blocks of 2²⁵: medians of {rounds} pairs in one
process, and their range. One layer of random weights; `float32` backward passes use torch's fused
attention, which has no blocks.

| batch | type | pass | ratio | range |
|---|---|---|---|---|
{table}
"""


if __name__ == "__main__":
    main()
