"""Time, memory and utilisation of every quantity on a device, against plain passes there.

    python -m benchmarks.gpu --device cuda --out build/gpu.md
    python -m benchmarks.gpu --device cpu --shapes tiny --train-steps 0 --out build/gpu.md

Random-weight models of the Qwen2.5 shapes with a LoRA adapter of rank 64; E and U are random
tokens, 32 sequences of 100 of prompt and 200 of response, in micro-batches of up to 16,384 tokens.
256 responses of 200 tokens are drawn. The floor is a plain forward and backward pass over the
same micro-batches in the same process. Time is wall time on a GPU and process time on the CPU,
the median of interleaved repetitions after a warm-up. Peak memory is above the model's own bytes.
FLOPs are those that torch counts in matrix products; utilisation divides their rate by that of a
square product of the same type, timed in the same run.

Verbs are planned and run too, on the first shape: a checkpoint of random weights in a folder. Each
has the seconds of its stages. What matters comes first: the first shape in float32, its verbs,
training, then the other shapes and types.

What does not fit into the memory, what the time limit leaves out, a part whose library is missing,
and an error are named in the table. The limit bounds the whole call.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import statistics
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import torch
from peft import LoraConfig, get_peft_model
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2Config, Qwen2ForCausalLM

import isentrope as ise
from benchmarks.cost import peak_megabytes, ratio, timed
from benchmarks.plan import Case, make, settings
from isentrope.models.batching import micro_batches
from isentrope.system.memory import give_back, is_lack_of_memory


@dataclass(frozen=True)
class Shape:
    """A Qwen2 shape, its adapter and its batches."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    inner: int
    vocabulary: int
    tied: bool
    rank: int = 64
    prompt: int = 100
    response: int = 200
    n: int = 32
    drawn: int = 256


SHAPES = {
    "tiny": Shape(32, 2, 2, 1, 64, 128, True, rank=4, prompt=6, response=16, n=8, drawn=8),
    "0.5B": Shape(896, 24, 14, 2, 4864, 151936, True),
    "1.5B": Shape(1536, 28, 12, 2, 8960, 151936, True),
    "7B": Shape(3584, 28, 28, 4, 18944, 152064, False),
}
MAX_TOKENS = 16_384
"""Tokens per micro-batch, of the floors too."""
WEAK = 60
"""Steps of fine-tuning of a toy that finds few groups with an advantage."""
FAILED = "failed"
"""What a row says of an error that is no lack of memory."""

HEADER = (
    "| model | precision | what | ratio to the floor | seconds | peak memory ÷ floor's | "
    "utilisation |\n|---|---|---|---|---|---|---|"
)


@contextmanager
def default_type(dtype: torch.dtype) -> Iterator[None]:
    """A block in which new parameters have a type."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


class Subject:
    """A random policy of a shape on a device, with E, U, a step and a direction."""

    def __init__(self, shape: Shape, precision: str, device: str) -> None:
        torch.manual_seed(0)
        config = Qwen2Config(
            vocab_size=shape.vocabulary,
            hidden_size=shape.hidden,
            intermediate_size=shape.inner,
            num_hidden_layers=shape.layers,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            tie_word_embeddings=shape.tied,
        )
        kept = torch.bfloat16 if precision == "bfloat16" else torch.float32
        with torch.device(device), default_type(kept):  # 7B in float32 first would fit few cards
            base = Qwen2ForCausalLM(config)
            lora = LoraConfig(r=shape.rank, target_modules="all-linear", init_lora_weights=False)
            model = get_peft_model(base, lora).eval()
        self.shape, self.device = shape, device
        self.policy = ise.Policy(
            model, precision=precision, eos_token_id=1, pad_token_id=0, max_tokens=MAX_TOKENS
        )
        self.E, self.U = self.batch(0, 1), self.batch(1, 2)
        advantages = torch.randn(len(self.U), dtype=torch.float64)
        self.U = self.U.with_columns(advantages=advantages)
        self.batches = self.packed(self.E)
        self.batches_U = self.packed(self.U)
        self.parameters = [p for p in self.policy.model.parameters() if p.requires_grad]
        optimizer = torch.optim.AdamW(self.parameters, lr=1e-5)
        self.step = ise.optimizer_step(
            self.policy, self.U, optimizer, max_response_length=shape.response
        )
        self.optimizer = optimizer

    def batch(self, seed: int, group: int) -> ise.Rollouts:
        generator = torch.Generator().manual_seed(seed)

        def tokens(count: int) -> torch.Tensor:
            return torch.randint(2, self.shape.vocabulary, (count,), generator=generator)

        n, index = self.shape.n, torch.arange(self.shape.n) // group
        prompts = [tokens(self.shape.prompt) for _ in range(int(index.max()) + 1)]
        return ise.Rollouts(prompts, [tokens(self.shape.response) for _ in range(n)], index)

    def packed(self, rollouts: ise.Rollouts) -> list:
        whole = micro_batches(rollouts, self.policy.max_tokens)
        return [batch.to(self.policy.device) for batch in whole]

    def plain(self, batch) -> torch.Tensor:
        lm = self.policy.model.get_base_model()
        hidden = lm.model(input_ids=batch.input_ids, use_cache=False)[0][batch.rows, batch.columns]
        return torch.nn.functional.cross_entropy(lm.lm_head(hidden), batch.targets)

    def forward(self) -> None:
        with torch.no_grad(), self.policy.precision.active():
            for batch in self.batches:
                self.plain(batch)

    def forward_backward(self, batches: list | None = None) -> None:
        with self.policy.precision.active():
            for batch in batches or self.batches:
                self.plain(batch).backward()
        for p in self.parameters:
            p.grad = None

    def both(self) -> None:
        self.forward_backward(self.batches + self.batches_U)

    def jobs(self) -> dict[str, tuple[Callable[[], object], str, float]]:
        """What → (job, its floor, how many floors it should cost)."""
        policy, E, U, step = self.policy, self.E, self.U, self.step
        v, etas = step.direction, [1e-6, 2e-6, 4e-6, 8e-6]
        length = self.shape.response

        def sweep(rates: list[float], order: int) -> object:
            return ise.entropy_change(policy, E, v, rates, order=order)

        return {
            "scores ÷ forward": (lambda: ise.score(policy, E), "forward", 1),
            "sweep over 4 rates ÷ 5 forward passes": (lambda: sweep(etas, 0), "forward", 5),
            "δH₁ ÷ forward+backward": (lambda: sweep([], 1), "forward+backward", 1),
            "δH₁ and δH₂ ÷ forward+backward": (lambda: sweep([], 2), "forward+backward", 1),
            "g_H ÷ forward+backward": (
                lambda: ise.entropy_gradient(policy, E),
                "forward+backward",
                1,
            ),
            "step v ÷ forward+backward over U": (
                lambda: ise.optimizer_step(policy, U, self.optimizer, max_response_length=length),
                "forward+backward",
                1,
            ),
            "influence of sequences ÷ forward+backward over E and U": (
                lambda: ise.influence(
                    policy, E, U, step, tokens=False, options=ise.InfluenceOptions(groups=1)
                ),
                "both",
                1,
            ),
            "influence of tokens ÷ forward+backward over E and U": (
                lambda: ise.influence(policy, E, U, step, ise.InfluenceOptions(groups=1)),
                "both",
                1,
            ),
            "kernel E×U ÷ forward+backward over E and U": (
                lambda: ise.fisher_kernel(policy, E, U, preconditioner=step.preconditioner),
                "both",
                1,
            ),
        }


def peak_bytes(job: Callable[[], object], device: str) -> float:
    """Largest number of bytes held during a job above what was there before."""
    if device == "cpu":
        return peak_megabytes(job) * 2**20
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    job()
    torch.cuda.synchronize()
    return torch.cuda.max_memory_allocated() - before


def operations_of_attention(first: int, products: int) -> Callable[..., int]:
    """Operations of products of queries and keys; torch's own count knows no shared heads."""

    def count(*shapes: torch.Size, **_: object) -> int:
        query, key = shapes[first : first + 2]
        return 2 * products * query.numel() * key[-2]

    return count


ATTENTION = {
    getattr(torch.ops.aten, f"_scaled_dot_product_{kind}_attention{end}"): count
    for kind in ("flash", "efficient", "cudnn")
    for end, count in (
        ("", operations_of_attention(0, 2)),
        ("_backward", operations_of_attention(1, 5)),
    )
}


def cost_of(job: Callable[[], object], device: str) -> tuple[float, int]:
    """Largest number of bytes of a job, and the floating-point operations of its products."""
    with FlopCounterMode(display=False, custom_mapping=ATTENTION) as counter:
        peak = peak_bytes(job, device)
    return peak, counter.get_total_flops()


def peak_rate(precision: str, device: str, size: int) -> float:
    """Floating-point operations per second of a square matrix product of this type."""
    a = torch.randn(size, size, dtype=getattr(torch, precision), device=device)
    with ise.Precision.named(precision).active():
        seconds = timed({"product": lambda: a @ a}, 5, device)["product"]
    return 2 * size**3 / statistics.median(seconds)


class TimeLimitError(BaseException):
    """The seconds of a call are over; no handler of errors is to go on after it."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """End a block after so many seconds, wherever it is."""

    def stop(*_: object) -> None:
        raise TimeLimitError

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, max(seconds, 0.001))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def where_it_fits(what: str, rows: Callable[[], list[str]]) -> list[str]:
    """Rows, or one that says that the memory is too small for them, or what went wrong."""
    try:
        return rows()
    except Exception as error:  # a device is lent for minutes: what comes next is to run
        found = [f"| {what} | not run: the memory is too small | | | |"]
        if not is_lack_of_memory(error):
            traceback.print_exc()
            found = [f"| {what} | {FAILED}: {type(error).__name__} | | | |"]
    return found


def shape_rows(name: str, precision: str, device: str, repetitions: int) -> Iterator[list[str]]:
    """One row per quantity, each beside its floor; a quantity that does not fit says so."""
    made: list[Subject] = []
    failed = where_it_fits(
        f"{name} | {precision} | all",
        lambda: made.append(Subject(SHAPES[name], precision, device)) or [],
    )
    gc.collect()  # what a constructor that failed has built
    give_back()
    if failed:
        yield failed
        return
    subject = made.pop()
    rate = peak_rate(precision, device, 512 if name == "tiny" else 8192)
    floors = {
        "forward": subject.forward,
        "forward+backward": subject.forward_backward,
        "both": subject.both,
    }
    costs = {}

    def of_floor(what: str) -> list[str]:
        seconds = statistics.median(timed({what: floors[what]}, repetitions, device)[what])
        costs[what] = bytes_, operations = cost_of(floors[what], device)
        return [
            f"| {name} | {precision} | plain {what} | 1 | {seconds:.3g} | "
            f"1 ({bytes_ / 2**20:.0f} MiB) | {operations / seconds / rate:.0%} |"
        ]

    def of_job(what: str, job: Callable[[], object], floor: str, passes: float) -> list[str]:
        if floor not in costs:
            return [f"| {name} | {precision} | {what} | not run: its floor was not | | | |"]
        subject.policy.max_tokens = MAX_TOKENS
        seconds = timed({what: job, floor: floors[floor]}, repetitions, device)
        peak, operations = cost_of(job, device)
        taken, tokens = statistics.median(seconds[what]), subject.policy.max_tokens
        note = "" if tokens == MAX_TOKENS else f" (memory for {tokens} tokens at a time)"
        return [
            f"| {name} | {precision} | {what}{note} | "
            f"{ratio(seconds[what], seconds[floor], passes)} | {taken:.3g} | "
            f"{peak / costs[floor][0]:.2f} | {operations / taken / rate:.0%} |"
        ]

    for what in floors:
        yield where_it_fits(f"{name} | {precision} | plain {what}", partial(of_floor, what))
        give_back()
    for what, parts in subject.jobs().items():
        yield where_it_fits(f"{name} | {precision} | {what}", partial(of_job, what, *parts))
        give_back()
    label = f"{name} | {precision} | sampling"
    yield where_it_fits(label, lambda: [sampling_row(name, subject)])


def sampling_row(name: str, subject: Subject) -> str:
    """Tokens per second of sampling."""
    prompts = [p.tolist() for p in subject.E.prompt_ids]
    shape = subject.shape
    length = shape.response

    def draw() -> None:
        ise.sample(subject.policy, prompts, shape.drawn, max_new_tokens=length, seed=0)

    seconds = statistics.median(timed({"sample": draw}, 2, subject.device)["sample"])
    tokens = shape.drawn * length / seconds
    precision = subject.policy.precision.runtime_dtype
    return (
        f"| {name} | {precision} | sampling {shape.drawn} responses | {tokens:.0f} tokens per "
        f"second | {seconds:.3g} | | |"
    )


def train_rows(steps: int) -> list[str]:
    """`isentrope sft` on the toy, `train` with and without the probe, and of a weak policy."""
    if steps < 1:
        return []
    if find_spec("trl") is None:
        return ["Training was not run: TRL is not installed."]
    from isentrope.config.io import load_config
    from isentrope.config.train import SftConfig, TrainConfig
    from isentrope.verbs.sft import sft
    from isentrope.verbs.train import train

    runs = {
        "without probe": ("base", {"entropy_probe.enabled": "false"}),
        "with the probe at every step": ("base", {"entropy_probe.every": 1}),
        "of a weak policy": (
            "weak",
            {"entropy_probe.enabled": "false", "training.redraw_limit": 200},
        ),
    }
    seconds: dict[str, float] = {}
    logs: dict[str, list[dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as scratch:
        quiet = ["output.log_level=WARNING"]
        for base, fine_tuning in (("base", 400), ("weak", WEAK)):
            settings = [f"output.directory={scratch}/{base}", f"fine_tuning.steps={fine_tuning}"]
            sft(load_config("configs/sft_toy.yaml", [*settings, *quiet], SftConfig))
        for name, (base, own) in runs.items():
            folder = Path(scratch) / name
            chosen = {
                "model.path": f"{scratch}/{base}/model",
                "output.directory": folder,
                "training.steps": steps + 1,
                "training.save_every": steps + 1,
                **own,
            }
            settings = [*quiet, *(f"{key}={value}" for key, value in chosen.items())]
            train(load_config("configs/train_toy.yaml", settings, TrainConfig))
            for kind in ("timing", "metrics"):
                lines = (folder / "logs" / f"{kind}.jsonl").read_text().splitlines()[1:]
                logs[kind] = [json.loads(line) for line in lines]
            seconds[name] = sum(line["seconds"] for line in logs["timing"])
    drawn, useless = (sum(line[x] for line in logs["metrics"]) for x in ("drawn", "rejected"))
    plain, probed, weak = seconds.values()
    return [
        "| toy | seconds |",
        "|---|---|",
        f"| {steps} steps of training without probe | {plain:.2f} |",
        f"| {steps} steps with the probe at every step | {probed:.2f} |",
        f"| probe at every step ÷ none | {probed / plain:.2f} |",
        f"| {steps} steps of a weak policy, without probe: {useless:.0f} of {drawn:.0f} groups "
        f"without advantage | {weak:.2f} |",
    ]


def quantised_rows(name: str, device: str) -> list[str]:
    """Scores and δH₁ over a 4-bit base, where bitsandbytes is installed."""
    if device == "cpu" or find_spec("bitsandbytes") is None:
        return ["A 4-bit base was not run: it needs a GPU and bitsandbytes."]
    subject = Subject(SHAPES[name], "float32", device)
    with tempfile.TemporaryDirectory() as scratch:
        base, adapter = Path(scratch) / "base", Path(scratch) / "adapter"
        subject.policy.model.save_pretrained(adapter)
        subject.policy.model.unload().save_pretrained(base)
        policy = ise.Policy.from_checkpoint(
            adapter,
            base_model=base,
            device_map=device,
            quantization="4bit",
            precision="float32",
            eos_token_id=1,
            pad_token_id=0,
        )
        change = ise.entropy_change(policy, subject.E, subject.step.direction, [], order=1)
    return [f"A 4-bit {name} base: {change.entropy}; δH₁ {change.first_order}."]


def planned_rows(name: str, device: str) -> Iterator[list[str]]:
    """What `isentrope plan` says of four verbs on a checkpoint, beside what they take."""
    from isentrope.cli.commands import MEASURING
    from isentrope.config.io import load_any, load_config
    from isentrope.verbs.loop import run_verb
    from isentrope.verbs.plan import plan

    if device == "cpu":
        yield ["Plans were not compared: benchmarks/plan.py does that on a CPU."]
        return
    shape = SHAPES[name]
    sizes = {
        "vocab_size": shape.vocabulary,
        "hidden_size": shape.hidden,
        "intermediate_size": shape.inner,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
    }
    case = Case("", sizes, 4 * shape.n, 2 * shape.n, shape.response, "float32", ())
    yield [
        f"Planned and taken on the device: {name}, LoRA r 16, {case.batches}, {case.precision}.",
        "",
        "| verb | planned, GB | taken, GB | ratio | taken, s | plan, s | seconds of stages |",
        "|---|---|---|---|---|---|---|",
    ]
    with tempfile.TemporaryDirectory() as scratch:
        make(case, Path(scratch))
        for verb in ("measure", "influence", "kernel", "noise"):
            chosen = settings(case, Path(scratch), verb)
            chosen["checkpoint"]["device_map"] = device
            file = Path(scratch) / f"{verb}.json"
            file.write_text(json.dumps(chosen))
            start = time.perf_counter()
            (planned,) = plan(load_any(file), str(file), verbs=[verb])
            planning = time.perf_counter() - start
            start = time.perf_counter()
            runs = []
            peak = peak_bytes(
                lambda v=verb, c=chosen, r=runs: r.append(run_verb(MEASURING[v], load_config(c))),
                device,
            )
            taken = time.perf_counter() - start
            size = planned.peak - planned.libraries
            timing = runs[0].results[0].timing.items()
            stages = ", ".join(f"{stage} {seconds:.1f}" for stage, seconds in timing)
            yield [
                f"| {verb} | {size / 1e9:.2f} | {peak / 1e9:.2f} | {size / peak:.2f} | "
                f"{taken:.1f} | {planning:.1f} | {stages} |"
            ]


def parts_of(args: argparse.Namespace) -> dict[str, Callable[[], Iterator[list[str]]]]:
    """What a call does, by name, in order: what matters first, what is left out last."""
    parts: dict[str, Callable[[], Iterator[list[str]]]] = {}
    first = args.shapes[0]
    quantised = partial(quantised_rows, first, args.device)

    def measured(name: str, precision: str) -> None:
        what = name, precision, args.device, args.repetitions
        parts[f"{name} | {precision}"] = partial(shape_rows, *what)

    main = args.precisions[0]
    measured(first, main)
    parts["plans | float32"] = lambda: planned_rows(first, args.device)
    parts["training | float32"] = lambda: iter([train_rows(args.train_steps)])
    for name in args.shapes[1:2]:
        measured(name, main)
    parts["4-bit | float32"] = lambda: iter([where_it_fits("4-bit | float32 | all", quantised)])
    for name in args.shapes:
        for precision in args.precisions:
            if f"{name} | {precision}" not in parts:
                measured(name, precision)
    return parts


def run(args: argparse.Namespace) -> list[str]:
    """The lines of the page, which is written after every row: it outlives what kills the call."""
    table, text, open_parts = [HEADER], list[str](), parts_of(args)
    names = list(open_parts)

    def rest(name: str) -> str:
        return f"{name} | {'the rest' if any(name in line for line in table) else 'all'}"

    def keep(name: str, rows: list[str]) -> None:
        for row in rows:
            (table if row.startswith(f"| {name} |") else text).append(row)
        print(*rows, sep="\n", flush=True)
        write(args, [*table, "", *text])

    def do(name: str) -> list[str]:
        for rows in open_parts[name]():
            keep(name, rows)
        return []

    try:
        with time_limit(args.seconds):
            for name in names:
                keep(name, where_it_fits(rest(name), partial(do, name)))
                keep(name, [""])
                del open_parts[name]
                gc.collect()  # a subject refers to itself
                give_back()
    except TimeLimitError:
        for name in open_parts:
            keep(name, [f"| {rest(name)} | not run: the time limit | | | |"])
    return table + text


def main() -> None:
    """Run the shapes and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--shapes", nargs="+", default=["0.5B", "1.5B", "7B"], choices=SHAPES)
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--repetitions", type=int, default=4)
    parser.add_argument("--train-steps", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=540, help="of the whole call")
    parser.add_argument("--out", type=Path, default=Path("build/gpu.md"))
    if any(FAILED in line for line in run(parser.parse_args())):
        raise SystemExit(1)


def write(args: argparse.Namespace, lines: list[str]) -> None:
    """The page, with the command, the date and the device."""
    where = "CPU" if args.device == "cpu" else torch.cuda.get_device_name()
    command = f"python -m benchmarks.gpu --device {args.device} --shapes {' '.join(args.shapes)}"
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.write_text(
        f"# Cost on a device\n\n`{command}`, {date.today()}, {where}, torch {torch.__version__}. "
        "LoRA rank 64, 32 sequences of 100 + 200 tokens (tiny: rank 4, 8 of 6 + 16).\n\n"
        + "\n".join(lines)
        + "\n",
        encoding="utf-8",
    )


if __name__ == "__main__":
    main()
