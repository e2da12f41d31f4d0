"""What `isentrope sft` does: fine-tune a model on a task's demonstrations, and save it.

<run folder>/model/              the model or the adapter, with its tokenizer; whole or absent
<run folder>/config.yaml         resolved; running it again makes the same model, bit for bit
<run folder>/logs/metrics.jsonl  step, loss, learning_rate, grad_norm; no times
<run folder>/training_state/     checkpoints step_N, where fine_tuning.save_every has them
<run folder>/tensorboard/        where output.report_to has it

At the end the model answers held-out prompts greedily, whose format and reward are given.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from isentrope.config.paths import inputs_of
from isentrope.config.train import DataConfig, FineTuningConfig, SftConfig
from isentrope.config.trl import sft_options
from isentrope.evaluation.metrics import estimate_metrics
from isentrope.evaluation.responses import (
    choose_prompts,
    draw_responses,
    make_records,
    random_numbers,
)
from isentrope.models.requirements import active_dropout
from isentrope.models.trainable import find_model
from isentrope.nouns.choices import Metric
from isentrope.nouns.estimate import Estimate
from isentrope.policy.language_model import Policy
from isentrope.run.begun import MODEL, is_done, require_no_run
from isentrope.run.folder import prepare_log, resolved_content, run_directory
from isentrope.run.identity import CONFIG, Identity, flat_settings, require_same
from isentrope.run.lock import one_writer
from isentrope.run.origin import training_origin
from isentrope.sampling.tasks.task import Demonstrator, FormattedTask
from isentrope.system.files import write_bytes
from isentrope.system.log import log
from isentrope.system.manifest import verify
from isentrope.system.processes import barrier, join_processes, rank
from isentrope.system.progress import progress
from isentrope.system.reading import read_json, read_json_lines, reading
from isentrope.training.demonstrations import IGNORED, encode_demonstrations
from isentrope.training.divergence import require_finite_number, require_finite_state
from isentrope.training.run_files import RunFiles, kept_steps
from isentrope.training.tensorboard import continue_tensorboard
from isentrope.verbs.prepare_training import begin_training
from isentrope.verbs.train import resumed, under_way


def adherence_of(
    data: DataConfig, tuning: FineTuningConfig, policy: Policy, rows: dict[str, list[list[int]]]
) -> Callable[[], dict[str, Estimate | None]]:
    """Choose prompts that a fine-tuning does not train on, a random subset of the held-out split.

    Args:
        data: Has the splits.
        tuning: How many prompts, and the seed of their choice.
        policy: Of the model, before it is trained; it is the one that answers.
        rows: The encoded demonstrations; no response is longer than those.

    Returns:
        Has the model answer the prompts greedily; gives the mean reward, and the shares without an
        end and with the format.

    Raises:
        ValueError: If there are too few prompts, before anything is trained.
    """
    n = tuning.adherence_prompts
    seed = tuning.seed
    task = data.task(data.held_out_split)
    prompt_lengths = [labels.count(IGNORED) for labels in rows["labels"]]
    pairs = list(zip(rows["input_ids"], prompt_lengths, strict=True))
    trained = {tuple(ids[:length]) for ids, length in pairs}
    longest = max(len(ids) - length for ids, length in pairs)
    prompts = choose_prompts(task.prompts, None, seed, policy=policy)
    untrained = [prompt for prompt in prompts if prompt.token_ids not in trained]
    if len(untrained) < n:
        raise ValueError(
            f"fine_tuning.adherence_prompts={n}, and the split {data.held_out_split!r} has "
            f"{len(untrained)} prompts that are not trained on: lower it, or set "
            "data.held_out_split."
        )
    chosen = choose_prompts(untrained, n, seed, policy=policy)

    def adherence() -> dict[str, Estimate | None]:
        policy.model.eval()
        responses = draw_responses(
            policy,
            chosen,
            1,
            random_numbers(seed),
            decoding="greedy",
            max_new_tokens=longest,
        )
        metrics: list[Metric] = ["reward", "truncated"]
        if isinstance(task, FormattedTask):
            metrics.append("format")
        records = make_records(policy, responses, task)
        return estimate_metrics(records, metrics, (1,), sampled=False)

    return adherence


@dataclass(frozen=True)
class FineTuned:
    """What a run of `sft` made.

    Attributes:
        model: Folder of the model.
        loss: Mean surprisal of the last step's demonstrations before that step, nats per token.
        adherence: Of greedy responses to held-out prompts, the shares with the task's format and
            without an end, and the mean reward; those that the task has, none where not asked for.
    """

    model: Path
    loss: float
    adherence: dict[str, Estimate | None] = field(default_factory=dict)


def sft(config: SftConfig) -> FineTuned:
    """Fine-tune a model; returns its folder and the last loss."""
    prepare_log(config)
    join_processes()
    files = RunFiles(run_directory(config.output.directory))
    with one_writer(files.folder, inputs_of(config)):
        require_no_run(files, SftConfig)
        barrier()  # all processes look before any of them writes
        return _fine_tune(config, files, None)


def resume_sft(folder: str | Path, overrides: Iterable[str] = ()) -> FineTuned:
    """Resume a run from its newest checkpoint, bit-for-bit identically.

    Args:
        folder: The run folder.
        overrides: Settings of output, which alone may change.

    Returns:
        The folder of the model and the last loss.

    Raises:
        FileNotFoundError: If the folder holds no run that can be resumed.
        ConfigError: If another setting is changed, or the run was made from something else.
    """
    files = RunFiles(folder)
    with resumed(files, overrides, SftConfig) as config:
        if is_done(files, None):
            log.info("The run has done its %d steps.", config.fine_tuning.steps)
            return FineTuned(files.folder / MODEL, _read_last_loss(files))
        files.require_known_names()
        if (checkpoint := files.latest()) is not None:
            verify(checkpoint)
            files.require_whole_log(max(files.steps()))
        return _fine_tune(config, files, checkpoint)


def _fine_tune(config: SftConfig, files: RunFiles, checkpoint: Path | None) -> FineTuned:
    from isentrope.training.supervised import RECORD, save_model, supervised_trainer

    tuning = config.fine_tuning
    find_model(config.model.path)
    config.data.require_files()
    places = {"model": {"path", "allow_hub"}, "data": {"dataset_path"}}  # known by their content
    not_compared = {"output": True, "provenance": True}
    settings = config.model_dump(mode="json", exclude={**not_compared, **places})
    record = {"config": settings, "made_from": training_origin(config)}
    if checkpoint is not None:
        cure = "or start a new run with another --out."
        before, current = (
            Identity(flat_settings(side["config"]), side["made_from"])
            for side in (read_json(checkpoint / RECORD), record)
        )
        require_same(checkpoint, before, current, cure=f"restore it, {cure}", cure_of_files=cure)
    options = sft_options(config, files.folder)
    last_step = max(files.steps()) if checkpoint else 0
    saved = [0]  # the model
    if tuning.save_every is not None:
        saved += kept_steps(range(last_step + 1, tuning.steps + 1), tuning.save_every)
    cure = "set fine_tuning.save_every, or choose another --out"
    model, tokenizer = begin_training(config, files, tuning.seed, saved, cure)
    policy = Policy(model, tokenizer, precision="as_is")
    rows = examples(config.data, tuning, policy)
    adherence: Callable[[], dict[str, Estimate | None]] = dict
    if tuning.adherence_prompts:
        adherence = adherence_of(config.data, tuning, policy, rows)
    written = resolved_content(
        config, files.folder, provenance=config.provenance if checkpoint else None
    )
    if rank() == 0:
        files.rewind(last_step if checkpoint else -1)  # of a run that was stopped
        if tuning.save_every is not None:
            write_bytes(files.folder / CONFIG, written)
    barrier()
    size = options["per_device_train_batch_size"]
    smaller = f"fine_tuning.micro_batch (now {size} demonstrations per backward pass)"
    with under_way(files, "sft", smaller):
        trainer = supervised_trainer(
            model,
            tokenizer,
            rows,
            options,
            _make_observer(tuning.steps, files),
            shard_base=config.model.shard_base,
            files=files,
            record=record,
        )
        continue_tensorboard(trainer, files.folder, last_step)
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    require_finite_state(tuning.steps, model, None, files)
    adhered: dict[str, Estimate | None] = {}
    if rank() == 0:
        save_model(model, tokenizer, (files.folder / MODEL).resolve())
        write_bytes(files.folder / CONFIG, written)
        adhered = adherence()
    barrier()
    return FineTuned(files.folder / MODEL, _read_last_loss(files), adhered)


def _read_last_loss(files: RunFiles) -> float:
    with reading(files.metrics):
        return float(read_json_lines(files.metrics)[-1][1]["loss"])


def examples(
    data: DataConfig, tuning: FineTuningConfig, policy: Policy
) -> dict[str, list[list[int]]]:
    """As many demonstrations as a run needs, encoded."""
    if dropout := active_dropout(policy.model.train()):
        raise ValueError(
            f"{dropout[0]!r} has dropout, which would make the model random: set it to 0 in the "
            "model's config.json."
        )
    task = data.task(data.train_split)
    if not isinstance(task, Demonstrator):
        raise ValueError(f"The task {data.dataset_name!r} has no demonstrations to learn from.")
    pairs = task.demonstrations(tuning.steps * tuning.batch_size, tuning.seed)
    return encode_demonstrations(policy, pairs, tuning.max_length)


def _make_observer(steps: int, files: RunFiles) -> Callable[[dict[str, float]], None]:
    show = progress().fine_tuning(steps)

    def observe(metrics: dict[str, float]) -> None:
        if rank() == 0:
            files.log(metrics)
            show(metrics)
        for name, words in (("loss", "The loss"), ("grad_norm", "The gradient norm")):
            require_finite_number(int(metrics["step"]), words, metrics.get(name, 0.0), files)

    return observe
