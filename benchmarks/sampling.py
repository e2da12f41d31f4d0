"""What drawing responses costs, as a ratio to `generate` of transformers with a merged adapter.

    python -m benchmarks.sampling --out docs/results/sampling.md

Random weights with LoRA of rank 64 on every linear layer, prompts of equal length, no token that
ends a response: both sides take equally many decoding steps. `generate` samples without filters,
its adapter merged by PEFT before the clock starts; here merging and putting back are part of the
time. Both sides draw one batch, in turn, in one process; process time on one thread.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from unittest.mock import patch

import torch
from peft import LoraConfig, get_peft_model
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from benchmarks.cost import ratio, timed
from isentrope.sampling import draw
from validation.origin import write_results


@dataclass(frozen=True)
class Case:
    """A model with LoRA, and the responses that are drawn."""

    hidden: int
    layers: int
    vocabulary: int
    sequences: int = 32
    prompt: int = 32
    response: int = 32
    rank: int = 64

    @property
    def words(self) -> str:
        """What the page calls it."""
        return (
            f"width {self.hidden}, {self.layers} layers, vocabulary {self.vocabulary:,}; "
            f"{self.sequences} responses of {self.response} tokens"
        )


CASES = (
    Case(128, 4, 32, sequences=128, response=64, rank=16),
    Case(256, 24, 2_048),
    Case(384, 6, 151_936, sequences=16, response=16),
    Case(768, 6, 32_768),
)


class Subject:
    """A random policy and a number of equally long prompts."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=case.vocabulary,
            hidden_size=case.hidden,
            intermediate_size=3 * case.hidden,
            num_hidden_layers=case.layers,
            num_attention_heads=case.hidden // 64,
            num_key_value_heads=max(1, case.hidden // 192),
            tie_word_embeddings=True,
            eos_token_id=None,
            bos_token_id=None,
        )
        lora = LoraConfig(r=case.rank, target_modules="all-linear", init_lora_weights=False)
        self.case = case
        self.model = get_peft_model(Qwen2ForCausalLM(config), lora).eval()
        self.policy = ise.Policy(self.model, precision="float32", pad_token_id=0)
        self.prompts = torch.randint(1, case.vocabulary, (case.sequences, case.prompt))
        self.uniforms = torch.rand(case.sequences, case.response, dtype=torch.float64)

    def draw(self) -> None:
        """Draw responses with the log-probability and entropy of every token."""
        case = self.case
        draw.sample_responses(
            self.policy, list(self.prompts), self.uniforms, case.response, case.sequences
        )

    def draw_unmerged(self) -> None:
        """Do the same through the adapter's own layers."""
        with patch.object(draw, "adapters_merged", lambda _: nullcontext()):
            self.draw()

    @torch.no_grad()
    def generate(self) -> None:
        """Draw tokens alone, by `generate` of transformers."""
        self.model.generate(
            input_ids=self.prompts,
            attention_mask=torch.ones_like(self.prompts),
            do_sample=True,
            top_k=0,
            max_new_tokens=self.case.response,
            pad_token_id=0,
        )


def row(case: Case, repetitions: int) -> str:
    """Rates of both ways to draw, over that of `generate`."""
    subject = Subject(case)

    seconds: dict[str, list[float]] = {name: [] for name in ("merged", "unmerged", "generate")}
    for _ in range(repetitions):
        ways: dict[str, Callable[[], None]] = {
            "merged": subject.draw,
            "unmerged": subject.draw_unmerged,
        }
        for name, times in timed(ways, 1, "cpu").items():
            seconds[name] += times
        subject.model.merge_adapter()
        seconds["generate"] += timed({"generate": subject.generate}, 1, "cpu")["generate"]
        subject.model.unmerge_adapter()
    merged, unmerged = (ratio(seconds["generate"], seconds[n]) for n in ("merged", "unmerged"))
    return f"| {case.words} | {merged} | {unmerged} |"


TEMPLATE = """# Drawing responses

`python -m benchmarks.sampling`, {today}, one CPU thread, float32, {repetitions} rounds. Random
weights of Qwen2 with LoRA (rank 64; of the first row 16) on every linear layer. Tokens per second,
over those of `generate` of transformers with the adapter merged by PEFT, in one batch of the same
size. Median over rounds of the paired ratios ± half the distance of their quartiles.

| model and responses | with LoRA merged, as always | through the adapter's own layers |
|---|---|---|
{rows}

Every token is drawn in float64 from a uniform of its own, and its log-probability and the entropy
at its place are kept, which `generate` does not do. LoRA is merged for the draw and the tensors
are put back, within the time. `generate` draws from a multinomial over the whole vocabulary, which
takes longer than the inverse of the cumulative distribution: hence ratios above 1.

Weights of 16 bits, quantised ones and variants of LoRA are drawn from unmerged: the merged weights
would round. On a GPU as many responses are drawn at a time as its free memory holds.
"""


def main() -> None:
    """Run the benchmark and write the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5, help="(%(default)s)")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    for case in CASES:
        rows.append(row(case, options.repetitions))
        print(rows[-1], flush=True)
    text = TEMPLATE.format(
        today=date.today(), repetitions=options.repetitions, rows="\n".join(rows)
    )
    if options.out:
        write_results(options.out, text)


if __name__ == "__main__":
    main()
