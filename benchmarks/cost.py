"""What a measurement costs, as ratios to plain passes over the same tokens in the same process.

    python -m benchmarks.cost --out docs/results/cost.md

The floor is the loop that one would write by hand: micro-batches of right-padded sequences sorted
by length, the model's own forward pass (its default attention kernel), logits on response
positions only, float64 log-softmax and entropies. Repetitions are interleaved and the median of
process time is taken; the spread is half the distance of the quartiles. Peak memory is torch's
own count of allocated bytes above what was there before (profiler), so it does not depend on the
machine.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.profiler import ProfilerActivity, profile
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from isentrope.models.batching import micro_batches
from validation.origin import write_results

SHAPES = {
    "toy": {
        "vocab_size": 40,
        "hidden_size": 128,
        "intermediate_size": 344,
        "layers": 4,
        "heads": 4,
    },
    "mid": {
        "vocab_size": 16384,
        "hidden_size": 384,
        "intermediate_size": 1024,
        "layers": 6,
        "heads": 6,
    },
    "narrow": {
        "vocab_size": 256,
        "hidden_size": 32,
        "intermediate_size": 64,
        "layers": 24,
        "heads": 4,
    },
}
"""In `narrow` what starts the operations takes most of the time, as where a card waits for it."""

SEQUENCES = {"toy": 256, "mid": 32, "narrow": 16}


@dataclass
class Subject:
    """A random policy with LoRA r 16, an E-batch of random tokens, and a direction."""

    shape: str
    precision: str
    n: int
    device: str

    def __post_init__(self) -> None:
        torch.manual_seed(0)
        self.policy = random_policy(SHAPES[self.shape], self.precision, self.device)
        vocabulary = SHAPES[self.shape]["vocab_size"]
        self.E = random_rollouts(self.n, vocabulary, prompt=10, response=40)
        self.v = {n: torch.randn_like(p).double() for n, p in self.policy.theta.items()}
        self.batches = [
            b.to(self.policy.device) for b in micro_batches(self.E, self.policy.max_tokens)
        ]
        self.parameters = [p for p in self.policy.model.parameters() if p.requires_grad]

    def plain_scores(self, batch) -> tuple[torch.Tensor, torch.Tensor]:
        lm = self.policy.model.get_base_model()
        hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0][batch.rows, batch.columns]
        log_p = lm.lm_head(hidden).double().log_softmax(-1)
        return log_p.gather(1, batch.targets[:, None])[:, 0], -(log_p.exp() * log_p).sum(-1)

    def forward(self) -> None:
        with torch.no_grad():
            for batch in self.batches:
                self.plain_scores(batch)

    def forward_backward(self) -> None:
        for batch in self.batches:
            s, entropy = self.plain_scores(batch)
            (s.sum() + entropy.sum()).backward()
        for p in self.parameters:
            p.grad = None

    def one_by_one(self, rates: int) -> None:
        """One sequence at a time with full logits, for every rate."""
        lm = self.policy.model.get_base_model()
        with torch.no_grad():
            for _ in range(rates + 1):
                for prompt, response in zip(self.E.prompt_ids, self.E.response_ids, strict=True):
                    ids = torch.cat((prompt, response))[None].to(self.policy.device)
                    log_p = lm(input_ids=ids, use_cache=False).logits.double().log_softmax(-1)
                    -(log_p.exp() * log_p).sum(-1)

    def sweep(self, rates: int, order: int = 0) -> None:
        etas = [1e-6 * (k + 1) for k in range(rates)]
        ise.entropy_change(self.policy, self.E, self.v, etas, order=order)


def random_policy(shape: dict, precision: str, device: str = "cpu") -> ise.Policy:
    config = Qwen2Config(
        vocab_size=shape["vocab_size"],
        hidden_size=shape["hidden_size"],
        intermediate_size=shape["intermediate_size"],
        num_hidden_layers=shape["layers"],
        num_attention_heads=shape["heads"],
        num_key_value_heads=shape["heads"],
    )
    model = get_peft_model(Qwen2ForCausalLM(config), LoraConfig(r=16, target_modules="all-linear"))
    return ise.Policy(model.eval().to(device), precision=precision, eos_token_id=1, pad_token_id=0)


def random_rollouts(n: int, vocabulary: int, prompt: int, response: int) -> ise.Rollouts:
    def tokens(longest: int) -> torch.Tensor:
        return torch.randint(2, vocabulary, (int(torch.randint(longest // 2, longest + 1, ())),))

    return ise.Rollouts(
        [tokens(prompt) for _ in range(n)], [tokens(response) for _ in range(n)], torch.arange(n)
    )


def timed(jobs: dict[str, Callable[[], None]], repetitions: int, device: str) -> dict[str, list]:
    """Seconds of each job, interleaved; process time on the CPU, wall time on a GPU."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    seconds: dict[str, list[float]] = {name: [] for name in jobs}
    for repetition in range(repetitions + 1):
        for name, job in jobs.items():
            start = clock()
            job()
            if device != "cpu":
                torch.cuda.synchronize()
            if repetition:  # the first is a warm-up
                seconds[name].append(clock() - start)
    return seconds


def ratio(times: list[float], floor: list[float], per: float = 1.0) -> str:
    """Median of the paired ratios, and half the distance of their quartiles."""
    values = [a / (b * per) for a, b in zip(times, floor, strict=True)]
    low, middle, high = statistics.quantiles(values, n=4)
    return f"{middle:.2f} ± {(high - low) / 2:.2f}"


def time_rows(shape: str, precision: str, n: int, repetitions: int, device: str) -> list[str]:
    subject = Subject(shape, precision, n, device)
    jobs = {
        "forward": subject.forward,
        "forward+backward": subject.forward_backward,
        "sweep of 4": lambda: subject.sweep(4),
        "sweep of 8": lambda: subject.sweep(8),
        "first order": lambda: subject.sweep(0, order=1),
        "second order": lambda: subject.sweep(0, order=2),
        "gradient": lambda: ise.entropy_gradient(subject.policy, subject.E),
        "one by one": lambda: subject.one_by_one(4),
    }
    seconds = timed(jobs, repetitions, device)
    forward, both = seconds["forward"], seconds["forward+backward"]
    rows = [
        ("sweep over 4 rates ÷ 5 forward passes", ratio(seconds["sweep of 4"], forward, 5), "1.15"),
        ("sweep over 8 rates ÷ 9 forward passes", ratio(seconds["sweep of 8"], forward, 9), "1.15"),
        ("δH₁ ÷ forward+backward", ratio(seconds["first order"], both), "1.8"),
        ("δH₁ and δH₂ ÷ forward+backward", ratio(seconds["second order"], both), ""),
        ("gradient g_H ÷ forward+backward", ratio(seconds["gradient"], both), ""),
        (
            "one sequence at a time, 4 rates ÷ sweep over 4 rates",
            ratio(seconds["one by one"], seconds["sweep of 4"]),
            "",
        ),
    ]
    return [f"| {shape} | {precision} | {what} | {got} | {aim} |" for what, got, aim in rows]


def peak_megabytes(job: Callable[[], object]) -> float:
    """Largest sum of bytes that torch held at once during a job, above the start."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        job()
    events = [
        e
        for e in profiler.profiler.kineto_results.events()  # pyright: ignore
        if e.name() == "[memory]"
    ]
    held = peak = 0
    for event in sorted(events, key=lambda e: e.start_ns()):
        held += event.nbytes()
        peak = max(peak, held)
    return peak / 2**20


def memory_rows() -> list[str]:
    rows = []
    for vocabulary in (8192, 32768, 65536):
        for n in (32, 128):
            shape = SHAPES["toy"] | {"vocab_size": vocabulary}
            torch.manual_seed(0)
            policy = random_policy(shape, "float32")
            E = random_rollouts(n, vocabulary, prompt=10, response=40)
            tokens = int(E.lengths.sum())

            def naive(policy=policy, E=E) -> None:
                lm = policy.model.get_base_model()
                with torch.no_grad():
                    for batch in micro_batches(E, policy.max_tokens):
                        log_p = lm(input_ids=batch.input_ids).logits.double().log_softmax(-1)
                        -(log_p.exp() * log_p).sum(-1)

            ours = peak_megabytes(lambda policy=policy, E=E: ise.score(policy, E))
            rows.append(f"| {vocabulary} | {tokens} | {ours:.0f} | {peak_megabytes(naive):.0f} |")
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/cost.md"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--n", type=int, help="sequences; by default as SEQUENCES says")
    parser.add_argument("--shapes", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--no-memory", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(1)
    lines = [
        "| model | precision | what | ratio (median ± half quartile distance) | aim |",
        "|---|---|---|---|---|",
    ]
    for shape in args.shapes:
        for precision in ("float32", "float64") if shape == "toy" else ("float32",):
            n = args.n or SEQUENCES[shape]
            lines += time_rows(shape, precision, n, args.repetitions, args.device)
    if not args.no_memory and args.device == "cpu":
        lines += [
            "",
            "Peak memory of scoring above the model, MiB:",
            "",
            "| vocabulary | response tokens | ours | full logits, float64 log-softmax |",
            "|---|---|---|---|",
            *memory_rows(),
        ]
    where = "cpu, one thread" if args.device == "cpu" else torch.cuda.get_device_name()
    text = (
        f"# Cost of a measurement\n\n`python -m benchmarks.cost --repetitions {args.repetitions} "
        f"--device {args.device}`, {date.today()}, {where}, torch {torch.__version__}; "
        f"sequences: {args.n or ', '.join(f'{k} {v}' for k, v in SEQUENCES.items())}.\n\n"
        + "\n".join(lines)
        + "\n"
    )
    write_results(args.out, text)
    print(text)


if __name__ == "__main__":
    main()
