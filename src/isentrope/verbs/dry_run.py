"""A verb run twice on small shares of its batches, and the straight line to the whole.

Both runs have the same random sequences, in the second one longer. What takes time or memory in
proportion to tokens is the slope; all else (weights, stored gradients, a second-derivative check)
is the rest. Nothing is drawn for them; decoding is timed by a few steps of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from isentrope._lazy import load
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.measure import MeasureConfig
from isentrope.models.limits import share_of_limits
from isentrope.nouns.rollouts import Rollouts
from isentrope.planning.gauge import Alive, Meter
from isentrope.planning.plan import Stage, on_line
from isentrope.policy.language_model import Policy
from isentrope.policy.scoring import score
from isentrope.results.verbs import VERBS
from isentrope.runs.checkpoints import Subject
from isentrope.sampling.generate import sample_responses
from isentrope.system.progress import Progress
from isentrope.verbs.precision_stages import at_precision
from isentrope.verbs.prepare import prepare_checkpoint

SHARE = 0.05
"""Tokens of the second run, of all; the first has a quarter of them."""

PROMPTS_E, PROMPTS_U = 16, 4
"""Prompt draws of a dry run, at least, as far as there are as many: error groups need them."""

STEPS = 4
"""Steps of decoding that are timed."""


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

    def of_a_process(self, processes: int) -> Batch:
        """What one of several processes has of it."""
        return replace(self, lengths=self.lengths[::processes])

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


@dataclass(frozen=True)
class _Loaded(Subject):
    """A subject whose policy is there already."""

    policy: Policy | None = None

    def load(self, where: Any, sampling: Any) -> Policy:
        """The policy."""
        assert self.policy is not None
        self.policy.compared_derivatives.clear()  # a verb compares them once
        return self.policy


@dataclass(frozen=True)
class _Run:
    """One dry run.

    Attributes:
        meter: Its seconds and bytes.
        names: The stages of each verb.
        stopped: Why a verb did not end.
    """

    meter: Meter
    names: dict[str, list[str]]
    stopped: dict[str, str]


@dataclass(frozen=True)
class DryRun:
    """What is needed to run the verbs of a configuration on shares of its batches.

    Attributes:
        policy: Loaded as the configuration says.
        config: In force.
        subject: The checkpoint.
        folder: Where files may be written.
        E: The evaluation batch of one process.
        U: The update batch.
        alive: Counts bytes.
    """

    policy: Policy
    config: MeasureConfig
    subject: Subject
    folder: Path
    E: Batch
    U: Batch
    alive: Alive

    def stages(self, verbs: Sequence[str]) -> dict[str, list[Stage] | str]:
        """Run the verbs twice.

        Returns:
            Of each verb its stages after sampling, with the whole batches' time and memory, or why
            it stopped.
        """
        small, large = zip(self.E.shares(PROMPTS_E), self.U.shares(PROMPTS_U), strict=True)
        whole, most = (self.E, self.U), self.config.sampling.max_tokens
        tokens, reads = (sum(b.tokens for b in whole), sum(b.largest(most) for b in whole))
        shares, parts, runs = [], [], []
        for of in (small, large):
            shares.append(sum(b.tokens for b in of) / tokens)
            parts.append(min(1.0, sum(b.largest(most) for b in of) / reads))
            runs.append(self._run(verbs, *of, parts[-1]))
        largest = max(b.largest(most) for b in whole)

        def stage(name: str) -> Stage:
            seconds = on_line(shares, [run.meter.seconds[name] for run in runs])
            memory = on_line(parts, [run.meter.peaks[name] for run in runs])
            return Stage(name, seconds(1), *self.alive.resident(memory), value=largest)

        stopped, names = runs[0].stopped | runs[1].stopped, runs[1].names
        return {
            verb: stopped.get(verb) or [stage(name) for name in ("update", *names[verb])]
            for verb in verbs
        }

    def _run(self, verbs: Sequence[str], E: Batch, U: Batch, part: float) -> _Run:
        files = {}
        for name, batch in (("E", E), ("U", U)):
            file = self.folder / f"{name}.parquet"
            batch.sequences(name, self.policy.vocabulary).save(file)
            files[f"{name}_file"] = str(file)
        data = self.config.batch_config.model_copy(update={**files, "allow_overlap": True})
        config = self.config.model_copy(update={"batch_config": data})
        subject = _Loaded(**vars(self.subject), policy=self.policy)
        run = _Run(Meter(self.alive), {}, {})
        seconds = run.meter.seconds
        with share_of_limits(part), self.alive:
            ready = prepare_checkpoint(config, subject, Progress(), run.meter)
            for verb in verbs:
                before = set(seconds)
                try:
                    with (
                        at_precision(self.policy, config.precision.measuring),
                        run.meter.stage(verb),
                    ):
                        load(VERBS[verb].analyse)(ready, Progress())
                except (ValueError, RuntimeError, ArithmeticError) as error:
                    run.stopped[verb] = f"its dry run stopped: {error}"
                inner = [name for name in seconds if name not in before and name != verb]
                seconds[verb] -= sum(seconds[name] for name in inner)
                run.names[verb] = [*inner, verb]
        return run


def sampling_stage(
    policy: Policy,
    alive: Alive,
    config: MeasureConfig | EvaluateConfig,
    drawn: list[tuple[int, int]],
) -> Stage:
    """Time a few steps of decoding of as many sequences as are drawn at a time.

    Args:
        policy: The policy.
        alive: Counts bytes.
        config: How responses are drawn, and at which precision.
        drawn: (prompt, response) of each sequence, in tokens.

    Returns:
        The stage; the keys and values that more tokens leave in the cache are added.
    """
    at_once = min(config.sampling.batch_size, len(drawn))
    longest = max(r for _, r in drawn)
    meter, steps = Meter(alive), min(STEPS, longest)
    prompts = [torch.ones(1, dtype=torch.long)] * at_once

    def decode(steps: int) -> None:
        sample_responses(policy, prompts, torch.rand(at_once, steps).double(), steps, at_once)

    ends, policy.eos_token_ids = policy.eos_token_ids, ()
    try:
        with at_precision(policy, config.precision.sampling), alive:
            decode(1)  # what is slow once
            fixed = alive.now
            with meter.stage("sampling"):
                decode(steps)
    finally:
        policy.eos_token_ids = ends
    seconds = meter.seconds["sampling"] * -(-len(drawn) // at_once) * longest / steps
    more = max(p + r for p, r in drawn) - steps - 1
    peak = meter.peaks["sampling"] + at_once * more * _cached_bytes(policy)
    return Stage("sampling", seconds, peak, fixed, "sampling.batch_size", at_once)


def _cached_bytes(policy: Policy) -> int:
    """Keys and values of a token, in float32."""
    config = policy.causal_lm.config
    heads = config.num_attention_heads
    width = getattr(config, "head_dim", None) or config.hidden_size // heads
    groups = getattr(config, "num_key_value_heads", None) or heads
    return 2 * config.num_hidden_layers * groups * width * 4


def scoring_stage(policy: Policy, alive: Alive, config: EvaluateConfig, batch: Batch) -> Stage:
    """Score one micro-batch.

    Args:
        policy: The policy.
        alive: Counts bytes.
        config: At which precision, and how many tokens at a time.
        batch: The whole, of equal sequences.

    Returns:
        The stage of the whole.
    """
    reads = batch.largest(config.sampling.max_tokens)
    some = replace(batch, lengths=batch.lengths[: reads // sum(batch.lengths[0])], group=1)
    meter = Meter(alive)
    with at_precision(policy, config.precision.measuring), alive, meter.stage("scoring"):
        score(policy, some.sequences("E", policy.vocabulary))
    seconds = meter.seconds["scoring"] * batch.tokens / some.tokens
    fixed = alive.now
    peak, _ = alive.resident(lambda share: fixed + share * (meter.peaks["scoring"] - fixed))
    return Stage("scoring", seconds, peak, fixed, value=reads)
