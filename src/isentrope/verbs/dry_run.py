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

import torch

from isentrope.checkpoint.checkpoint import Checkpoint
from isentrope.checkpoint.in_force import SettingsInForce
from isentrope.config.measure import MeasureConfig
from isentrope.models.batching import share_of_limits
from isentrope.nouns.rollouts import Rollouts
from isentrope.planning.memory import Alive, Meter, cache_bytes
from isentrope.planning.plan import Plan, Stage
from isentrope.policy.language_model import Policy
from isentrope.results.verbs import VERBS
from isentrope.sampling.draw import sample_responses
from isentrope.sampling.prompts import as_prompts, name_prompts
from isentrope.sampling.tasks import Task
from isentrope.system.progress import Clock
from isentrope.verbs.batches import at_precision, read_rollouts
from isentrope.verbs.prepare import prepare_checkpoint

SHARE = 0.05
"""Tokens of the second run, of all; the first has a quarter of them."""

PROMPTS_E, PROMPTS_U = 16, 4
"""Prompt draws of a dry run, at least, as far as there are as many: error groups need them."""

PREPARED = "prepared"
"""What verbs start from, which is run once for all."""

STEPS = 4
"""Steps of decoding that are timed."""

RESIDENT = 1.8
"""Resident bytes of a process for each byte of arrays that come and go: of 1.5 to 2.2 measured on a
CPU, where free blocks stay in the heap (docs/results/plan.md)."""

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
        read = read_rollouts(policy, file, task, longest, data.chat_template_kwargs)
        pairs = zip(read.prompt_ids, read.response_ids, strict=True)
        return Batch([(len(p), len(r)) for p, r in pairs], len(read) // read.n_prompts, False)

    return (
        batch(data.E_file, data.evaluation_task, data.B_E, data.G_E),
        batch(data.U_file, data.update_task, data.B_U, data.G),
    )


def stages_of(
    plans: Sequence[Plan], checkpoint: Checkpoint, settings: SettingsInForce, folder: Path
) -> list[Plan]:
    """Run the verbs of plans on two shares of their batches.

    Args:
        plans: A plan a verb, without stages.
        checkpoint: The checkpoint.
        settings: The settings in force.
        folder: Where files may be written.

    Returns:
        The plans, each with the stages of the whole batches, or with why its verb stopped.
    """
    config = settings.config
    loading = Clock()
    with loading.stage("load"):
        policy = checkpoint.load(config.checkpoint, config.sampling)
        _load_what_is_late()
    alive = Alive(policy.device.type, [*policy.model.parameters(), *policy.model.buffers()])
    first = [Stage("load", loading.seconds["load"], alive.now, alive.now)]
    whole, most = batches_of(config, policy), policy.max_tokens
    if drawn := [pair for batch in whole if batch.drawn for pair in batch.lengths]:
        with at_precision(policy, config.precision.sampling):
            first.append(sampling_stage(policy, config.sampling.batch_size, drawn, alive.now))
    tokens, reads = (sum(b.tokens for b in whole), sum(b.largest(most) for b in whole))
    shares, parts, meters = [], [], list[dict[str, Meter]]()
    stopped: dict[str, str] = {}
    for of in zip(whole[0].shares(PROMPTS_E), whole[1].shares(PROMPTS_U), strict=True):
        shares.append(sum(b.tokens for b in of) / tokens)
        # micro-batches of the same part of E's and U's, since some stages read one of them
        part = min(1.0, *(b.tokens / w.largest(most) for b, w in zip(of, whole, strict=True)))
        policy.max_tokens = max(1, round(part * most))
        parts.append(min(1.0, sum(b.largest(policy.max_tokens) for b in of) / reads))
        files = {}
        for name, batch in zip("EU", of, strict=True):
            files[f"{name}_file"] = str(folder / f"{name}.parquet")
            batch.sequences(name, policy.vocabulary).save(files[f"{name}_file"])
        data = config.batch_config.model_copy(update={**files, "allow_overlap": True})
        small = config.model_copy(update={"batch_config": data})
        with share_of_limits(parts[-1]), alive:
            verbs = [plan.verb for plan in plans]
            smaller = replace(settings, config=small)
            meters.append(_run(verbs, checkpoint, smaller, policy, alive, stopped))
    policy.max_tokens = most
    largest = max(b.largest(most) for b in whole)

    def stage(name: str, own: str, rows: int = 0) -> Stage:
        seconds = on_line(shares, [of[own].seconds[name] for of in meters])(1)
        memory = on_line(parts, [of[own].peaks[name] for of in meters])
        kept = RESIDENT if policy.device.type == "cpu" else 1.0
        fixed = rows + memory(0)
        peak = fixed + kept * (memory(1) - memory(0))
        return Stage(name, seconds, int(peak), int(fixed), value=largest)

    def stages(p: Plan) -> list[Stage]:
        rows = p.held.get("stored gradients", 0)  # of which it had fewer
        names = list(meters[0][p.verb].peaks)
        return [stage(name, p.verb, rows if name == p.verb else 0) for name in names]

    first.append(stage("update", PREPARED))
    return [
        replace(p, not_run=stopped[p.verb])
        if p.verb in stopped
        else replace(p, stages=(*first, *stages(p)))
        for p in plans
    ]


def _run(
    verbs: Sequence[str],
    checkpoint: Checkpoint,
    settings: SettingsInForce,
    policy: Policy,
    alive: Alive,
    stopped: dict[str, str],
) -> dict[str, Meter]:
    """Run verbs on one share; meters of them and of what they start from, each of its own."""
    meters = {PREPARED: Meter(alive)}
    policy.compared_derivatives.clear()  # a verb compares them once
    ready = prepare_checkpoint(checkpoint, settings, meters[PREPARED], policy)
    for verb in verbs:
        own = meters[verb] = Meter(alive)
        own.seconds.update(meters[PREPARED].seconds)  # which some verbs read
        analyse = load(VERBS[verb].analyse)
        try:
            with at_precision(ready.policy, ready.config.precision.measuring), own.stage(verb):
                analyse(replace(ready, clock=own))
        except (ValueError, RuntimeError, ArithmeticError) as error:
            stopped[verb] = f"This is not all: its dry run stopped: {error}"
        own.seconds[verb] -= sum(own.seconds[name] for name in own.peaks if name != verb)
    return meters


def on_line(shares: Sequence[float], found: Sequence[float]) -> Callable[[float], float]:
    """The straight line through two dry runs, which never falls.

    Args:
        shares: Of the whole, the smaller first.
        found: What they took.

    Returns:
        What a share takes; 1 is the whole.
    """
    (less, more), (first, second) = shares, found
    slope = max(0.0, second - first) / (more - less) if more > less else 0.0
    return lambda share: max(0.0, second + slope * (share - more))


def _load_what_is_late() -> None:
    """Modules whose import would be in the first of two runs, and hide what tokens take."""
    import pyarrow.dataset  # noqa: F401
    import scipy.stats  # noqa: F401

    zero = torch.zeros(1)
    torch.func.jvp(torch.sin, (zero,), (zero,))  # torch compiles rules at the first derivative


def sampling_stage(
    policy: Policy, at_once: int, drawn: list[tuple[int, int]], weights: int
) -> Stage:
    """A few steps of decoding as many sequences as are drawn at a time.

    Args:
        policy: At the precision that it samples in.
        at_once: Sequences that are drawn at a time, at most.
        drawn: (prompt, response) of each sequence, in tokens.
        weights: Bytes of the model.

    Returns:
        The stage of all of them; its memory is that of the cache, by shapes.
    """
    at_once, clock = min(at_once, len(drawn)), Clock()
    prompts = [torch.ones(1, dtype=torch.long)] * at_once
    ends, policy.eos_token_ids = policy.eos_token_ids, ()
    try:
        for steps in (1, STEPS):  # what is slow once is in the first
            with clock.stage(str(steps)):
                uniforms = torch.rand(at_once, steps).double()
                sample_responses(policy, prompts, uniforms, steps, at_once)
    finally:
        policy.eos_token_ids = ends
    size = next(policy.model.parameters()).element_size()
    cache = cache_bytes(policy.model.config, at_once, max(p + r for p, r in drawn), size)
    decoded = -(-len(drawn) // at_once) * max(r for _, r in drawn)
    seconds = clock.seconds[str(STEPS)] * decoded / STEPS
    return Stage("sampling", seconds, weights + cache, weights, "sampling.batch_size", at_once)
