"""Two steps of a training of one micro-batch each: what is alive in the first, time of the second.

The trainer is that of the verb, over responses that are random and as long as they may be, or over
demonstrations. Its second step ends it, and nothing is kept.
"""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import TrainerCallback

from isentrope.config.train import (
    DataConfig,
    FineTuningConfig,
    ModelConfig,
    ProbeConfig,
    TrainingConfig,
)
from isentrope.planning.gauge import Alive, Meter
from isentrope.planning.plan import Stage, meta_model
from isentrope.planning.training_memory import held_in_training
from isentrope.probe.callback import EntropyProbe
from isentrope.sampling.batches import UpdateBatchReport
from isentrope.system.progress import Clock
from isentrope.training.models import (
    TOY,
    build_toy_policy,
    find_model,
    fresh_adapter,
    load_trainable,
)
from isentrope.training.update_batches import UpdateBatch
from isentrope.verbs.dry_run import Batch, sampling_stage
from isentrope.verbs.sft import examples

READ = 256
"""Demonstrations that are read to know how long they are."""

STEP, PASS, PROBE, SIZE = "step", "update", "probe", "entropy_probe.size"


@dataclass(frozen=True)
class Counts:
    """How often a run does what a dry run does once.

    Attributes:
        steps: Optimizer steps.
        passes: Micro-batches of a step.
        setting: Of the micro-batch.
        micro_batch: Its value.
        readings: Of the probe.
        probed: Prompts of a reading.
        draws: Batches that are drawn.
        longer: The largest micro-batch, as a multiple of the one that is run.
    """

    steps: int
    passes: int
    setting: str
    micro_batch: int
    readings: int = 0
    probed: int = 1
    draws: int = 0
    longer: float = 1.0


class FirstSteps(TrainerCallback):
    """Gauges the first step, times the second one, and ends the training.

    Attributes:
        alive: Bytes alive.
        gauged: Of the first step.
        timed: Of the second one.
        before: Bytes alive before the first step.
        held: After it.
    """

    def __init__(self, trainer: Any) -> None:
        """Follow a trainer, whose micro-batches and readings are stages."""
        known = weights_of(trainer)
        self.alive = Alive(known[0].device.type, known)
        self.gauged, self.timed = Meter(self.alive), Clock()
        self.before = self.held = 0
        self._now: Clock = self.gauged
        self._blocks = ExitStack()
        trainer.training_step = self._staged(PASS, trainer.training_step)
        for probe in probes_of(trainer):
            for hook in ("on_pre_optimizer_step", "on_optimizer_step"):
                setattr(probe, hook, self._staged(PROBE, getattr(probe, hook)))
        trainer.add_callback(self)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step begins."""
        if state.global_step == 0:
            self.before = self.alive.now
            self._blocks.enter_context(self.alive)
        else:
            self._now = self.timed
        self._blocks.enter_context(self._now.stage(STEP))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """A step ends; that of the second one includes its log."""
        if state.global_step == 1:
            self._blocks.close()
            self.held = self.alive.now
        else:
            control.should_training_stop = True

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """The second step ends."""
        self._blocks.close()

    def _staged(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def staged(*args: Any, **kwargs: Any) -> Any:
            with self._now.stage(name):
                return call(*args, **kwargs)

        return staged


def weights_of(trainer: Any) -> list[Tensor]:
    """Parameters and buffers of a trainer's model, and of TRL's reference model."""
    models = filter(None, (trainer.model, getattr(trainer, "ref_model", None)))
    return [x for model in models for x in (*model.parameters(), *model.buffers())]


def probes_of(trainer: Any) -> list[EntropyProbe]:
    """The probes among a trainer's callbacks."""
    return [x for x in trainer.callback_handler.callbacks if isinstance(x, EntropyProbe)]


def stages_of_training(trainer: Any, counts: Counts) -> list[Stage]:
    """Train two steps, and multiply.

    Args:
        trainer: Of steps of one micro-batch.
        counts: Of the run.

    Returns:
        Its updates, and the readings of its probe.

    Raises:
        RuntimeError: If the probe stopped.
    """
    first = FirstSteps(trainer)
    trainer.train()
    if any(probe.off for probe in probes_of(trainer)):
        raise RuntimeError("the probe could not read, which the log explains")
    seconds, peaks = first.timed.seconds, first.gauged.peaks
    one_pass, reading = seconds[PASS], seconds.get(PROBE, 0.0)
    rest = seconds[STEP] - one_pass - reading
    of_stage = {PASS: counts.steps * (counts.passes * one_pass + rest)}
    values = {PASS: (counts.setting, counts.micro_batch), PROBE: (SIZE, counts.probed)}
    if counts.readings:
        of_stage[PROBE] = counts.readings * reading

    def stage(name: str, longer: float) -> Stage:
        more = longer * (peaks[name] - first.before)
        peak, fixed = first.alive.resident(lambda share: first.held + share * more)
        return Stage(name, of_stage[name], peak, fixed, *values[name])

    return [stage(name, counts.longer if name == PASS else 1.0) for name in of_stage]


def draw_at_random(trainer: Any) -> None:
    """Have a trainer's batches be random responses, as long as they may be, with an advantage."""
    batches, groups = trainer.batches, trainer.batches.groups
    width = groups.max_new_tokens
    longest = sorted(batches.prompts, key=lambda p: -len(p.token_ids))[: groups.n]
    n = groups.n * groups.size
    chosen = [longest[k // groups.size % len(longest)] for k in range(n)]
    whole = Batch([(len(p.token_ids), width) for p in chosen], groups.size, True)
    rollouts = replace(
        whole.sequences("U", trainer.policy.vocabulary),
        sampler_logprobs=[torch.full((width,), -1.0)] * n,
        sampler_entropies=[torch.ones(width)] * n,
        prompt_keys=[p.key for p in chosen],
        response_texts=[""] * n,
        max_new_tokens=width,
    )
    report = UpdateBatchReport(groups.n, 0, 0, 0, 0.5, 1.0)
    batches.draw = lambda *_: UpdateBatch(rollouts, report, [0.5] * n)


def loaded(trainer: Any, seconds: float) -> Stage:
    """The stage before any step: the model is there, and nothing else."""
    alive = sum(x.nbytes for x in weights_of(trainer))
    return Stage("load", seconds, alive, alive)


def decoding(trainer: Any, at_once: int, counts: Counts) -> Stage:
    """The stage of all responses that a run draws, those of groups that are drawn again aside."""
    policy, groups = trainer.policy, trainer.batches.groups
    policy.model.eval()
    alive = Alive(policy.device.type, weights_of(trainer))
    alive.now += held_in_training(policy.model)["moments of Adam"]  # of the steps before
    longest = max(len(prompt.token_ids) for prompt in trainer.batches.prompts)
    drawn = [(longest, groups.max_new_tokens)] * (groups.n * counts.passes * groups.size)
    return sampling_stage(policy, alive, at_once, drawn, counts.draws)


def small_training(
    training: TrainingConfig, probing: ProbeConfig, uses: int
) -> tuple[dict[str, Any], Counts]:
    """Sections of a run whose steps are one micro-batch with a reading, and counts of the whole.

    Returns:
        The sections by name, and the counts.
    """
    n = training.micro_batch or training.prompts_per_step
    steps = max(3, training.steps)  # two are taken, and the last one would be saved
    sizes = {
        "prompts_per_step": n,
        "micro_batch": n,
        "steps": steps,
        "save_every": uses * steps,
        "keep_last": None,
        "keep_every": None,
    }
    counts = Counts(
        steps=training.steps,
        passes=training.prompts_per_step // n,
        setting="training.micro_batch",
        micro_batch=n,
        readings=-(-training.steps // probing.every) if probing.enabled else 0,
        probed=probing.size,
        draws=-(-training.steps // uses),
    )
    sections = {
        "training": training.model_copy(update=sizes),
        "entropy_probe": probing.model_copy(update={"every": 1}),
    }
    return sections, counts


def small_tuning(tuning: FineTuningConfig) -> tuple[dict[str, Any], Counts]:
    """The section of a fine-tuning whose steps are one micro-batch, and its counts."""
    n = tuning.micro_batch or tuning.batch_size
    steps = max(2, tuning.steps)
    small = tuning.model_copy(
        update={"batch_size": n, "micro_batch": n, "steps": steps, "save_every": None}
    )
    counts = Counts(tuning.steps, tuning.batch_size // n, "fine_tuning.micro_batch", n)
    return {"fine_tuning": small}, counts


def tuning_trainer(
    where: ModelConfig, data: DataConfig, small: FineTuningConfig, options: dict[str, Any]
) -> tuple[Any, float]:
    """The trainer of a fine-tuning over two micro-batches.

    Returns:
        It, and the longest of all demonstrations that were read over the longest of its first
        micro-batch.
    """
    from isentrope.training.supervised import supervised_trainer

    model, tokenizer = load_trainable(**where.model_dump(exclude={"shard_base"}), seed=small.seed)
    n = small.batch_size
    some = small.model_copy(update={"steps": max(2, -(-READ // n))})
    rows = examples(data, some, model, tokenizer)
    lengths = [len(ids) for ids in rows["input_ids"]]
    two = {name: column[: 2 * n] for name, column in rows.items()}
    trainer = supervised_trainer(model, tokenizer, two, options)
    return trainer, max(lengths) / max(lengths[:n])


def untrained(where: ModelConfig) -> tuple[Any, bool]:
    """The model that a run trains, without weights, with its trainable set.

    Returns:
        It, on the device meta, and whether its weights are on this machine.

    Raises:
        FileNotFoundError: If there is no such model.
    """
    if where.path == TOY:
        return build_toy_policy(0).model.to("meta"), True
    folder = Path(where.path).expanduser()
    try:
        source = str(folder) if (folder / "config.json").is_file() else find_model(where.path)
    except FileNotFoundError as error:
        raise FileNotFoundError(
            f"{error} Before it is made, plan with --set model.path= and the model that it is to "
            "be made from."
        ) from error
    dtype = getattr(torch, where.dtype)
    model, present = meta_model(source, allow_hub=where.allow_hub, dtype=dtype)
    if where.lora_rank and not hasattr(model, "peft_config"):
        with torch.device("meta"):
            targets = where.lora_target_modules
            model = fresh_adapter(model, where.lora_rank, where.lora_alpha, targets)
    return model, present
