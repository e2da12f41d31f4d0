"""What the Fisher kernel and influence cost, as ratios to plain forward+backward passes.

    python -m benchmarks.kernel --out docs/results/kernel.md

Every row of the kernel does the same work: all inner products of the LoRA gradients of n_E
sequences with those of n_U. The floor is the loop one would write by hand for the summed gradient:
micro-batches of right-padded sequences sorted by length (those that we make ourselves; 8 sequences
each for short ones), the model's default attention, logits on
response positions only, `sum(log pi).backward()`, float32, over the sequences of both. Process
time on one thread; rows and floor are interleaved in one process, so a busy machine slows both.

Other libraries are measured where they are installed (`benchmarks.peers`), in an environment of
their own, because their dependencies would replace torch:

    python3.11 -m venv peers && peers/bin/pip install -c constraints.txt torch
    peers/bin/pip install -c constraints.txt -e . datasets
    peers/bin/pip install --no-deps bergson==2.5.1 dattri-llm==0.1.0
    peers/bin/pip install jaxtyping natsort petname simple-parsing ml_dtypes
    peers/bin/python -m benchmarks.kernel --out docs/results/kernel.md
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from statistics import median

import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

import isentrope as ise
from benchmarks import peers
from benchmarks.cost import peak_megabytes, ratio, timed
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.models.batching import MicroBatch, micro_batches, tokens_read
from validation.origin import write_results

MAX_TOKENS = 1024
OURS, OURS_P, NAIVE = "ours", "ours, diagonal P", "naive, one backward a sequence"


@dataclass(frozen=True)
class Case:
    """A model with LoRA on every linear layer, and the sizes of both batches."""

    hidden: int
    intermediate: int
    layers: int
    heads: tuple[int, int]  # of queries; of keys and values
    rank: int
    n_E: int
    n_U: int
    vocabulary: int = 2048
    prompt: tuple[int, int] = (16, 32)  # tokens, fewest and most
    response: tuple[int, int] = (48, 96)
    rows: int | None = None  # sequences of a micro-batch of the floor; None: as we cut them

    def policy(self) -> ise.Policy:
        """Random weights; LoRA's B too, which is zero in a fresh adapter and would leave A none."""
        config = LlamaConfig(
            vocab_size=self.vocabulary,
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_hidden_layers=self.layers,
            num_attention_heads=self.heads[0],
            num_key_value_heads=self.heads[1],
            tie_word_embeddings=True,
        )
        lora = LoraConfig(r=self.rank, target_modules="all-linear")
        model = get_peft_model(LlamaForCausalLM(config), lora).eval()
        for name, p in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(p, std=0.02)
        tokens = {"eos_token_id": 1, "pad_token_id": 0, "max_tokens": MAX_TOKENS}
        return ise.Policy(model, precision="float32", **tokens)


SMALL = {"hidden": 256, "intermediate": 1024, "layers": 4, "heads": (4, 2)}
CASES = {
    "small": Case(**SMALL, rank=16, n_E=32, n_U=64),
    "small r 64": Case(**SMALL, rank=64, n_E=32, n_U=64),
    "small, many": Case(**SMALL, rank=16, n_E=128, n_U=256),
    "short": Case(
        *(192, 768, 4, (4, 4)), 8, 24, 48, vocabulary=500, prompt=(12, 12), response=(4, 40), rows=8
    ),
    "mid": Case(576, 1536, 12, (9, 3), rank=16, n_E=8, n_U=16),
}


class Subject:
    """A random policy, both batches, a step on U, and the ways to the same matrix."""

    def __init__(self, case: Case) -> None:
        torch.manual_seed(0)
        self.case = case
        self.policy = case.policy()
        self.E, U = (random_responses(case, n) for n in (case.n_E, case.n_U))
        self.U = U.with_columns(
            advantages=torch.randn(case.n_U).double(), max_new_tokens=case.response[1]
        )
        named = self.policy.model.named_parameters()
        self.parameters = {n: p for n, p in named if p.requires_grad}
        optimizer = torch.optim.AdamW(list(self.parameters.values()))
        self.step = ise.optimizer_step(self.policy, self.U, optimizer)
        self.P = self.step.preconditioner
        self.batches = {
            side: equal_micro_batches(rollouts, case.rows)
            if case.rows
            else micro_batches(rollouts, MAX_TOKENS)
            for side, rollouts in (("E", self.E), ("U", self.U))
        }

    @property
    def row_megabytes(self) -> float:
        return 4 * sum(p.numel() for p in self.parameters.values()) / 2**20

    def logprob_sums(self, batch: MicroBatch) -> Tensor:
        lm = self.policy.causal_lm
        hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0][batch.rows, batch.columns]
        return lm.lm_head(hidden).log_softmax(-1).gather(1, batch.targets[:, None]).sum()

    def floor(self) -> None:
        for batch in (*self.batches["E"], *self.batches["U"]):
            self.logprob_sums(batch).backward()
        for p in self.parameters.values():
            p.grad = None

    def ours(self, preconditioner=None, storage: Storage = Storage()) -> Tensor:
        gradients = ise.GradientOptions(storage=storage)
        return ise.fisher_kernel(
            self.policy, self.E, self.U, preconditioner=preconditioner, gradients=gradients
        ).matrix

    def influence(self, tokens: bool, groups: int) -> None:
        ise.influence(
            self.policy,
            self.E,
            self.U,
            self.step,
            tokens=tokens,
            options=ise.InfluenceOptions(groups=groups),
        )


def random_responses(case: Case, n: int) -> ise.Rollouts:
    """n prompts and responses of random tokens, their lengths uniform."""

    def tokens(fewest: int, most: int) -> Tensor:
        return torch.randint(2, case.vocabulary, (int(torch.randint(fewest, most + 1, ())),))

    prompts, responses = (
        [tokens(*length) for _ in range(n)] for length in (case.prompt, case.response)
    )
    return ise.Rollouts(prompts, responses, torch.arange(n))


def equal_micro_batches(rollouts: ise.Rollouts, rows: int) -> list[MicroBatch]:
    """Sequences sorted by length, so many at a time."""
    totals = torch.tensor(tokens_read(rollouts))
    parts = totals.argsort(descending=True).split(rows)
    batches = []
    for part in parts:
        (batch,) = micro_batches(rollouts.select(part), 2**40, padding=2**40)
        batches.append(replace(batch, sequences=part[batch.sequences]))
    return batches


def difference(found: Tensor, truth: Tensor) -> str:
    return f"{float((found - truth).abs().max() / truth.abs().max()):.0e}"


def kernel_rows(name: str, subject: Subject, repetitions: int) -> list[str]:
    """A row a way to the matrix, in order of time, and those that are not installed."""
    case = subject.case
    jobs: dict[str, Callable[[], Tensor]] = {
        OURS: subject.ours,
        OURS_P: lambda: subject.ours(subject.P),
        NAIVE: lambda: peers.naive(subject),
        "vmap(grad)": lambda: peers.mapped(subject),
        **peers.scorers(subject),
    }
    truth, truth_P = peers.naive(subject), peers.naive(subject, subject.P)
    equal = {
        way: difference(job(), truth_P if way == OURS_P else truth) for way, job in jobs.items()
    }
    seconds = timed({"floor": subject.floor, **jobs}, repetitions, "cpu")
    floor = seconds.pop("floor")
    aims = {OURS: f"1.0 (miss: {1.25 if case.rank == 64 else 1.2})", OURS_P: "ours + 0.1"}
    sizes = f"{name} | {case.n_E} × {case.n_U}"
    rows = [
        f"| {sizes} | {way} | {ratio(t, floor)} | {aims.get(way, '')} | {equal[way]} |"
        for way, t in sorted(seconds.items(), key=lambda item: median(item[1]))
    ]
    absent = [x for x in map(peers.label, peers.MODULES) if x not in jobs]
    return rows + [f"| {sizes} | {x} | | | |" for x in absent]


def influence_rows(name: str, subject: Subject, repetitions: int) -> list[str]:
    """Influence of sequences and of tokens, values alone and with errors of 8 groups."""
    wanted = {
        "all sequences, values": (False, 1, "1.15"),
        "all tokens, values": (True, 1, "1.8"),
        "all sequences, errors and reliability": (False, 8, ""),
        "all tokens, errors and reliability": (True, 8, ""),
    }
    jobs = {
        what: lambda tokens=tokens, groups=groups: subject.influence(tokens, groups)
        for what, (tokens, groups, _) in wanted.items()
    }
    seconds = timed({"floor": subject.floor, **jobs}, repetitions, "cpu")
    sizes = f"{name} | {subject.case.n_E}, {subject.case.n_U}"
    return [
        f"| {sizes} | {what} | {ratio(seconds[what], seconds['floor'])} | {aim} |"
        for what, (*_, aim) in wanted.items()
    ]


def memory_rows(name: str, subject: Subject) -> list[str]:
    """Peaks above the model, whole and with a tenth of the memory for held gradients."""
    held = min(subject.case.n_E, subject.case.n_U) * subject.row_megabytes
    tenth = max(held / 10, subject.row_megabytes)
    storage = Storage(memory=int(tenth * 2**20))
    floor = peak_megabytes(subject.floor)
    ours, naive = (peak_megabytes(job) for job in (subject.ours, lambda: peers.naive(subject)))
    tiles = peak_megabytes(lambda: subject.ours(storage=storage))
    error = difference(subject.ours(storage=storage), subject.ours())
    return [
        f"| {name} | {floor:.0f} | {held:.0f} | {ours:.0f} | {ours / (floor + held):.2f} "
        f"| {naive:.0f} | {tenth:.0f} | {tiles:.0f} | {error} |"
    ]


def page(cases: dict[str, Case], repetitions: int, memory: bool) -> str:
    """The tables as text."""
    kernel, influences, peaks, sizes = [], [], [], []
    for name, case in cases.items():
        subject = Subject(case)
        total = sum(p.numel() for p in subject.policy.model.parameters()) / 1e6
        trainable = subject.row_megabytes * 2**20 / 4e6
        sizes.append(f"{name}: LoRA {trainable:.2f} M of {total:.1f} M parameters")
        kernel += kernel_rows(name, subject, repetitions)
        influences += influence_rows(name, subject, repetitions)
        peaks += memory_rows(name, subject) if memory else []
    return TEMPLATE.format(
        repetitions=repetitions,
        today=date.today(),
        torch=torch.__version__,
        shapes="; ".join(sizes),
        max_tokens=MAX_TOKENS,
        kernel="\n".join(kernel),
        influences="\n".join(influences),
        peaks="\n".join(peaks),
    )


TEMPLATE = """# Cost of the Fisher kernel and of influence

`python -m benchmarks.kernel --repetitions {repetitions}`, {today}, one CPU thread, process time,
torch {torch}, float32. {shapes}. Prompts of 16 to 32 tokens, responses of 48 to 96, in
micro-batches of up to {max_tokens} tokens; short: 12 and 4 to 40 tokens, vocabulary 500, the floor
in micro-batches of 8 sequences sorted by length. All numbers in units of the floor:
a plain forward+backward pass over the sequences of both batches, median ± half quartile distance.

All inner products of the gradients of two batches; rows in order of time. The last column is the
largest difference to the naive matrix ÷ its largest entry.

| model | n_E × n_U | way | ÷ floor | aim | difference |
|---|---|---|---|---|---|
{kernel}

Influence, in the same unit (one pass over E + one over U):

| model | n_E, n_U | of | ÷ floor | aim |
|---|---|---|---|---|
{influences}

Peak memory above the model, MiB. Held: min(n_E, n_U) gradients, float32. The aim is ours ≤ 1.10 ×
(floor + held). Then with a tenth of that for held gradients (one, where that is more), in tiles,
and the largest difference to the whole.

| model | floor | held | ours | ÷ (floor + held) | naive | allowed | ours in tiles | difference |
|---|---|---|---|---|---|---|---|---|
{peaks}
"""


def main() -> None:
    """Measure and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("docs/results/kernel.md"))
    parser.add_argument("--repetitions", type=int, default=7)
    parser.add_argument("--cases", nargs="+", default=list(CASES), choices=list(CASES))
    parser.add_argument("--no-memory", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    cases = {name: CASES[name] for name in asked.cases}
    text = page(cases, asked.repetitions, not asked.no_memory)
    write_results(asked.out, text)
    print(text)


if __name__ == "__main__":
    main()
