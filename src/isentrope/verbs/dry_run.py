"""A verb run twice on small shares of its batches, and the straight line to the whole.

Both runs have the same random sequences, in the second one longer. What takes time or memory in
proportion to tokens is the slope; all else (weights, stored gradients, a second-derivative check)
is the rest. Nothing is drawn for them; decoding is timed by a few steps of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from pkgutil import resolve_name as load
from typing import Any

import torch

from isentrope.config.measure import MeasureConfig
from isentrope.models.batching import share_of_limits
from isentrope.nouns.rollouts import Rollouts
from isentrope.planning.gauge import Alive, Meter
from isentrope.planning.plan import Plan, Stage, on_line
from isentrope.policy.language_model import Policy
from isentrope.results.verbs import VERBS
from isentrope.runs.checkpoints import Subject
from isentrope.sampling.generate import sample_responses
from isentrope.sampling.prompts import as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.system.progress import Clock
from isentrope.verbs.batches import read_rollouts
from isentrope.verbs.precision_stages import at_precision
from isentrope.verbs.prepare import prepare_checkpoint

SHARE = 0.05
"""Tokens of the second run, of all; the first has a quarter of them."""

PROMPTS_E, PROMPTS_U = 16, 4
"""Prompt draws of a dry run, at least, as far as there are as many: error groups need them."""

STEPS = 4
"""Steps of decoding that are timed."""

PROMPTS_READ = 256
"""Prompts of a data set that are encoded to know how long they are."""


@dataclass(frozen=True)
class Batch:
    """The lengths of a batch.

    Attributes:
        lengths: (prompt, response) of each sequence, in tokens.
        group: Responses to a prompt.
        drawn: Whether the verb draws it.
    """

    lengths: list[tuple[int, int]]
    group: int
    drawn: bool

    @property
    def tokens(self) -> int:
        """Of all sequences."""
        return sum(p + r for p, r in self.lengths)

    def largest(self, max_tokens: int) -> int:
        """Padded tokens of the largest micro-batch."""
        longest = max(p + r for p, r in self.lengths)
        return longest * max(1, min(len(self.lengths), max_tokens // longest))

    def shares(self, fewest: int) -> tuple[Batch, Batch]:
        """The same few sequences twice: cut to a quarter, and as long as the share allows."""
        group = min(self.group, 2)
        n = max(round(SHARE * len(self.lengths)), fewest * group)
        n = min(n, len(self.lengths)) // group * group
        chosen = sorted(self.lengths)[:: -(len(self.lengths) // n)][:n]  # the longest is in it
        cut = min(1.0, SHARE * self.tokens / sum(p + r for p, r in chosen))

        def times(factor: float) -> Batch:
            lengths = [(max(1, round(p * factor)), max(2, round(r * factor))) for p, r in chosen]
            return Batch(lengths, group, self.drawn)

        return times(cut / 4), times(cut)

    def sequences(self, name: str, vocabulary: int) -> Rollouts:
        """Random sequences of these lengths, with rewards and advantages."""
        generator = torch.Generator().manual_seed(ord(name))

        def ids(length: int) -> torch.Tensor:
            return torch.randint(vocabulary, (length,), generator=generator)

        n = len(self.lengths)
        rewards = (torch.arange(n) % 2).double()
        return Rollouts(
            prompt_ids=[ids(p) for p, _ in self.lengths[:: self.group]],
            response_ids=[ids(r) for _, r in self.lengths],
            prompt_index=torch.arange(n) // self.group,
            prompt_keys=[f"{name}{k // self.group}" for k in range(n)],
            rewards=rewards,
            advantages=rewards - 0.5,
        )


def batches_of(config: MeasureConfig, policy: Policy) -> tuple[Batch, Batch]:
    """E and U as far as they are known: read, or responses as long as they may be."""
    data, longest = config.batch_config, config.sampling.max_new_tokens

    def batch(file: str | None, task: Callable[[], Task], prompts: int, group: int) -> Batch:
        if file is None:
            some = as_prompts(policy, name_prompts(task().prompts[:PROMPTS_READ]))
            prompt = max(len(p.token_ids or ()) for p in some)
            return Batch([(prompt, longest)] * prompts * group, group, True)
        read = read_rollouts(policy, file, task, longest)
        pairs = zip(read.prompt_ids, read.response_ids, strict=True)
        return Batch([(len(p), len(r)) for p, r in pairs], len(read) // read.n_prompts, False)

    return (
        batch(data.E_file, data.evaluation_task, data.B_E, data.G_E),
        batch(data.U_file, data.update_task, data.B_U, data.G),
    )


@dataclass(frozen=True)
class _Loaded(Subject):
    """A subject whose policy is there already."""

    policy: Policy | None = None

    def load(self, where: Any, sampling: Any) -> Policy:
        """The policy."""
        assert self.policy is not None
        self.policy.compared_derivatives.clear()  # a verb compares them once
        return self.policy


def stages_of(
    plans: Sequence[Plan], config: MeasureConfig, subject: Subject, folder: Path
) -> list[Plan]:
    """Run the verbs of plans on two shares of their batches.

    Args:
        plans: A plan a verb, without stages.
        config: In force.
        subject: The checkpoint.
        folder: Where files may be written.

    Returns:
        The plans, each with the stages of the whole batches, or with why its verb stopped.
    """
    loading = Clock()
    with loading.stage("load"):
        policy = subject.load(config.checkpoint, config.sampling)
        _load_what_is_late()
    alive = Alive(policy.device.type, [*policy.model.parameters(), *policy.model.buffers()])
    first = [Stage("load", loading.seconds["load"], alive.now, alive.now)]
    whole, most = batches_of(config, policy), policy.max_tokens
    if drawn := [pair for batch in whole if batch.drawn for pair in batch.lengths]:
        with at_precision(policy, config.precision.sampling):
            first.append(sampling_stage(policy, alive, config.sampling.batch_size, drawn))
    tokens, reads = (sum(b.tokens for b in whole), sum(b.largest(most) for b in whole))
    dry = _DryRun(config, _Loaded(**vars(subject), policy=policy), folder, alive)
    shares, parts = [], []
    for of in zip(whole[0].shares(PROMPTS_E), whole[1].shares(PROMPTS_U), strict=True):
        shares.append(sum(b.tokens for b in of) / tokens)
        parts.append(min(1.0, sum(b.largest(most) for b in of) / reads))
        dry.run([p.verb for p in plans], of, parts[-1])
    largest = max(b.largest(most) for b in whole)

    def stage(name: str, p: Plan) -> Stage:
        seconds = on_line(shares, [meter.seconds[name] for meter in dry.meters])(1)
        memory = on_line(parts, [meter.peaks[name] for meter in dry.meters])
        rows = p.held.get("stored gradients", 0) if name == p.verb else 0  # of which it had fewer
        peak, fixed = (rows + size for size in alive.resident(memory))
        return Stage(name, seconds, peak, fixed, value=largest)

    return [
        replace(p, not_run=dry.stopped[p.verb])
        if p.verb in dry.stopped
        else replace(p, stages=(*first, *(stage(n, p) for n in ("update", *dry.names[p.verb]))))
        for p in plans
    ]


def _load_what_is_late() -> None:
    """Modules whose import would be in the first of two runs, and hide what tokens take."""
    import pyarrow.dataset  # noqa: F401
    import scipy.stats  # noqa: F401

    zero = torch.zeros(1)
    torch.func.jvp(torch.sin, (zero,), (zero,))  # torch compiles rules at the first derivative


class _DryRun:
    """Verbs run on shares of their batches.

    Attributes:
        meters: Seconds and bytes of each run.
        names: The stages of each verb.
        stopped: Why a verb did not end.
    """

    def __init__(self, config: MeasureConfig, subject: _Loaded, folder: Path, alive: Alive) -> None:
        self.meters: list[Meter] = []
        self.names: dict[str, list[str]] = {}
        self.stopped: dict[str, str] = {}
        self._config, self._subject, self._folder, self._alive = config, subject, folder, alive

    def run(self, verbs: Sequence[str], batches: tuple[Batch, Batch], part: float) -> None:
        """Run every verb on these E and U, a part of whole micro-batches."""
        policy = self._subject.load(None, None)
        files = {}
        for name, batch in zip("EU", batches, strict=True):
            files[f"{name}_file"] = str(self._folder / f"{name}.parquet")
            batch.sequences(name, policy.vocabulary).save(files[f"{name}_file"])
        data = self._config.batch_config.model_copy(update={**files, "allow_overlap": True})
        config = self._config.model_copy(update={"batch_config": data})
        meter = Meter(self._alive)
        self.meters.append(meter)
        with share_of_limits(part), self._alive:
            ready = prepare_checkpoint(config, self._subject, meter)
            for verb in verbs:
                before, analyse = set(meter.seconds), load(VERBS[verb].analyse)
                try:
                    with at_precision(policy, config.precision.measuring), meter.stage(verb):
                        analyse(ready)
                except (ValueError, RuntimeError, ArithmeticError) as error:
                    self.stopped[verb] = f"its dry run stopped: {error}"
                inner = [name for name in meter.seconds if name not in {*before, verb}]
                meter.seconds[verb] -= sum(meter.seconds[name] for name in inner)
                self.names[verb] = [*inner, verb]


def sampling_stage(
    policy: Policy, alive: Alive, at_once: int, drawn: list[tuple[int, int]], times: int = 1
) -> Stage:
    """A few steps of decoding as many sequences as are drawn at a time.

    Args:
        policy: At the precision that it samples in.
        alive: Gauges its device.
        at_once: Sequences that are drawn at a time, at most.
        drawn: (prompt, response) of each sequence, in tokens.
        times: How often they are drawn.

    Returns:
        The stage of all of them.
    """
    at_once, steps = min(at_once, len(drawn)), (1, STEPS)
    prompts = [torch.ones(1, dtype=torch.long)] * at_once
    ends, policy.eos_token_ids = policy.eos_token_ids, ()
    meter = Meter(alive)
    try:
        with alive:
            fixed = alive.now
            for k in steps:  # what is slow once is in the first
                uniforms = torch.rand(at_once, k).double()
                with meter.stage(str(k)):
                    sample_responses(policy, prompts, uniforms, k, at_once)
    finally:
        policy.eos_token_ids = ends
    # more tokens leave keys and values in the cache, by the line through one step and four
    memory = on_line(steps, [meter.peaks[str(k)] for k in steps])
    peak = int(memory(max(p + r for p, r in drawn)))
    decoded = times * -(-len(drawn) // at_once) * max(r for _, r in drawn)
    seconds = meter.seconds[str(STEPS)] * decoded / STEPS
    return Stage("sampling", seconds, peak, fixed, "sampling.batch_size", at_once)
