"""What `isentrope evaluate` does: checkpoints on a task, in chunks that survive a kill.

The prompts of a checkpoint are cut into chunks. A chunk is sampled, scored, rewarded and written
whole; processes of torchrun take chunks by turns. Any order, any number of processes and any
restart give the same files. When all chunks of a checkpoint are there, the first process reads them
back and computes the numbers.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

from isentrope.checkpoint.checkpoint import StoredCheckpoint
from isentrope.checkpoint.digests import Digests
from isentrope.checkpoint.find import find_checkpoints
from isentrope.config.evaluate import (
    EvaluateConfig,
    EvaluationData,
    EvaluationSampling,
)
from isentrope.config.io import load_config
from isentrope.config.measure import PolicyConfig
from isentrope.config.paths import inputs_of
from isentrope.evaluation.options import require_format
from isentrope.evaluation.responses import (
    choose_prompts,
)
from isentrope.evaluation.vllm_engine import VllmEngine, require_vllm
from isentrope.parallel.ranks import from_first
from isentrope.run.evaluation_folder import (
    EvaluationResult,
    StepFolder,
    table_of,
)
from isentrope.run.folder import folder_name, prepare_log, resolved_content
from isentrope.run.identity import CONFIG, Identity, require_same
from isentrope.run.origin import evaluation_origin, of_evaluation
from isentrope.run.places import TABLE
from isentrope.run.runner import Earlier, Item, Runner
from isentrope.run.study import other_base, require_one_model
from isentrope.sampling.prompts import require_room
from isentrope.system.file_contents import csv
from isentrope.system.files import write_bytes
from isentrope.system.log import log
from isentrope.system.manifest import verification
from isentrope.system.processes import barrier, gather, join_processes, world_size
from isentrope.verbs.before_work import require_memory_to_evaluate
from isentrope.verbs.evaluable import require_evaluation
from isentrope.verbs.evaluation_chunks import ChunkedEvaluation


@dataclass(frozen=True)
class Evaluated:
    """What an evaluation made.

    Attributes:
        folder: Its folder.
        table: The consolidated table.
        results: In the order of the checkpoints.
    """

    folder: Path
    table: Path
    results: list[EvaluationResult]


def evaluate_checkpoints(config: EvaluateConfig) -> Evaluated:
    """Evaluate every checkpoint of a configuration, or resume where it was stopped.

    Args:
        config: What is evaluated, and how.

    Returns:
        The numbers, and where they are.

    Raises:
        ValueError: If a base model is other than training's, and was not chosen.
    """
    prepare_log(config, "This configuration is of an evaluation")
    join_processes()
    with verification(config.checkpoint.verify):
        checkpoints = require_evaluation_inputs(config.checkpoint, config.data, config.sampling)
        output = config.output
        path = checkpoints[0].path.resolve()
        trained = path.parent.parent if path.parent.name == "training_state" else path
        name = folder_name(f"{output.name or trained.name}_{config.data.dataset_name}")
        folder = gather(Path(output.directory or Path("eval_runs") / name))[0]
        run = Evaluator(config, checkpoints, folder).run()
        return Evaluated(folder, folder / TABLE, run.results)


def require_evaluation_inputs(
    section: PolicyConfig, data: EvaluationData, sampling: EvaluationSampling
) -> list[StoredCheckpoint]:
    """The checkpoints of a configuration whose files are there and belong together."""
    data.require_files()
    checkpoints = find_checkpoints(section)
    require_one_model(checkpoints, section.base_model)
    if sampling.engine == "vllm":
        require_vllm([c.path for c in checkpoints], world_size())
    return checkpoints


EvaluatedItem = Item[EvaluateConfig]


class Evaluator(Runner[EvaluateConfig, EvaluationResult]):
    """Evaluates the checkpoints of a configuration.

    Attributes:
        config: What is estimated, on which prompts, and how.
        checkpoints: The checkpoints.
    """

    def __init__(
        self, config: EvaluateConfig, checkpoints: Sequence[StoredCheckpoint], folder: Path
    ) -> None:
        """Nothing is loaded yet.

        Args:
            config: What is estimated, on which prompts, and how.
            checkpoints: The checkpoints.
            folder: Of the evaluation.
        """
        super().__init__(folder, inputs_of(config))
        self.config = config
        self.checkpoints = checkpoints

    def plan(self) -> list[EvaluatedItem]:
        """One item per checkpoint, in a folder that was begun with the same settings."""
        config = self.config
        settings = of_evaluation(config)
        if (file := self.folder / CONFIG).is_file():
            require_evaluation(self.folder)
            before = of_evaluation(load_config(file, root=EvaluateConfig))
            require_same(self.folder, Identity(before), Identity(settings))
        items = []
        for checkpoint in self.checkpoints:
            made_from = evaluation_origin(config, checkpoint.path)
            self._require_base(checkpoint, made_from)
            target = self.folder / checkpoint.name
            items.append(Item(checkpoint, config, target, Identity(settings, made_from)))
        return items

    def _require_base(self, checkpoint: StoredCheckpoint, made_from: Digests) -> None:
        """Refuse a base model other than training's that was not chosen."""
        path = checkpoint.path
        for obstacle in other_base(checkpoint, made_from):
            if self.config.checkpoint.base_model is None:
                raise ValueError(
                    f"{path} cannot be evaluated as trained: {obstacle.words}. Restore the "
                    "base model, or set checkpoint.base_model to evaluate on this one all the same."
                )
            log.warning("%s: %s.", path, obstacle.words)

    def earlier(self, item: EvaluatedItem) -> Earlier[EvaluationResult] | None:
        """The numbers of a checkpoint that is done, or what its chunks are made from."""
        return _step_folder(item).earlier()

    def compare(self, item: EvaluatedItem, earlier: Earlier[EvaluationResult]) -> None:
        """Compare files; the settings are those of the folder, which have been compared."""
        before = replace(earlier.identity, settings=item.identity.settings)
        require_same(item.target, before, item.identity)
        if earlier.result is not None:
            _step_folder(item).remove_chunks()

    def join(self, items: list[EvaluatedItem], results: list[EvaluationResult]) -> None:
        """Write the consolidated table, with a row for every checkpoint that is done."""
        content = csv(table_of(results))
        from_first(lambda: write_bytes(self.folder / TABLE, content))

    @cached_property
    def engine(self) -> VllmEngine | None:
        """vLLM, which reads the first checkpoint; None to generate by transformers."""
        config = self.config
        if config.sampling.engine != "vllm":
            return None
        return VllmEngine(
            self.checkpoints[0].path,
            base_model=config.checkpoint.base_model,
            allow_hub=config.checkpoint.allow_hub,
            dtype=config.precision.sampling.runtime_dtype,
            temperature=config.sampling.temperature,
            max_new_tokens=config.sampling.max_new_tokens,
            memory=config.sampling.vllm_memory,
            seed=config.evaluation.seed,
        )

    def make(self, item: EvaluatedItem) -> EvaluationResult:
        """Evaluate a checkpoint; what does not fit is refused before files."""
        config = self.config
        data = config.data
        profile = config.evaluation
        sampling = config.sampling
        step = _step_folder(item)
        log.info("evaluating %s", item.checkpoint.path)
        require_memory_to_evaluate(item.checkpoint.name, item.checkpoint.path, config)
        policy = item.checkpoint.load(config.checkpoint, sampling)
        task = data.task(data.split)
        require_format(task, profile.metrics or (), data.dataset_name)
        prompts = choose_prompts(task.prompts, profile.n_prompts, profile.seed, policy=policy)
        require_room(policy, prompts, sampling.max_new_tokens)
        barrier()

        def begin() -> None:
            content = resolved_content(config, self.folder, seeds={"evaluation": profile.seed})
            write_bytes(self.folder / CONFIG, content)
            step.begin()

        from_first(begin)
        starts = range(0, len(prompts), profile.chunk_prompts)
        chunks = [prompts[start : start + profile.chunk_prompts] for start in starts]
        evaluation = ChunkedEvaluation(config, self.engine, item.checkpoint, step)
        evaluation.make(chunks, policy, task)
        barrier()
        return from_first(lambda: evaluation.finish(len(chunks)))


def _step_folder(item: EvaluatedItem) -> StepFolder:
    return StepFolder(item.target, item.identity.digests)
