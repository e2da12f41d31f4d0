"""A verb run on every checkpoint of a configuration, each with a folder of its own.

    <run folder>/config.yaml
    <run folder>/measurements/<verb>_<name>/
        results.json  config.yaml  <table>.parquet ...  [E.parquet  U.parquet]
    <run folder>/measurements/<verb>_all.parquet      the first table of a study's items
    <run folder>/measurements/<verb>_study.csv        every number of them (`study_table`)

The first of the two tables of `measure` is all.parquet. A folder appears when its work is complete,
and not before. Processes of torchrun share the work on each batch; each has all numbers, and the
first of them writes.
"""

from collections.abc import Callable
from contextlib import ExitStack, nullcontext
from dataclasses import replace
from typing import Any, ClassVar, Protocol

from isentrope.checkpoint.in_force import SettingsInForce
from isentrope.config.io import load_config
from isentrope.config.measure import MeasureConfig
from isentrope.config.paths import inputs_of
from isentrope.estimators.means import too_few_for_modes
from isentrope.parallel.ranks import from_first
from isentrope.results.result import Result, Tables
from isentrope.results.results import load_result
from isentrope.results.verbs import MEASURE, Verb
from isentrope.run.folder import content_differences, prepare_log, resolved_content, run_directory
from isentrope.run.identity import CONFIG, Identity, require_same
from isentrope.run.origin import PATH_KEYS, of_measurement
from isentrope.run.runner import Earlier, Item, Run, Runner
from isentrope.run.study import study_items
from isentrope.run.study_table import write_study
from isentrope.system.files import whole_folder, write_bytes
from isentrope.system.log import log
from isentrope.system.manifest import verification
from isentrope.system.outputs import require_apart, require_writable
from isentrope.system.processes import join_processes, world_size
from isentrope.system.progress import Clock
from isentrope.system.reading import figure_left_out
from isentrope.verbs.answerable import require_answerable
from isentrope.verbs.batches import at_precision, prompts_of
from isentrope.verbs.before_work import require_memory
from isentrope.verbs.prepare import Prepare, Prepared, prepare_checkpoint

Draw = Callable[[Any], Any]
"""From a result to its figure, which has matplotlib's `savefig`."""


class Question(Protocol):
    """What is asked at each checkpoint: a verb that measures (`commands.measuring`).

    Attributes:
        verb: What the loop and the tables know of it.
        figure_file: File of its figure; empty for none.
    """

    verb: ClassVar[Verb]
    figure_file: ClassVar[str]

    @classmethod
    def analyse(cls, ready: Prepared) -> Result:
        """The result at a prepared checkpoint, at the measuring precision."""
        ...


MeasuredItem = Item[SettingsInForce]


def run_verb(
    question: type[Question],
    config: MeasureConfig,
    draw: Draw | None = None,
    prepare: Prepare = prepare_checkpoint,
) -> Run[Any]:
    """Run a verb on every checkpoint and write what it finds.

    Args:
        question: What to do at each checkpoint, at the measuring precision.
        config: The checkpoints and settings.
        draw: Makes the figure of a result; None for no figure.
        prepare: Makes a checkpoint ready; `PreparedOnce` where other verbs look at it too.

    Returns:
        The folders and the results.

    Raises:
        ValueError: If the rounded step or gradient is asked for, whose parts do not sum to it, a
            verb needs more prompt groups, or works in one process alone.
    """
    join_processes()
    verb = question.verb
    if not verb.processes and world_size() > 1:
        raise ValueError(
            f"isentrope {verb.name} runs in one process: its controls share out work as training "
            "does. Start it without torchrun."
        )
    require_answerable(verb, config)
    prepare_log(config)
    with verification(config.checkpoint.verify):
        return MeasuringRunner(question, config, draw, prepare).run()


def answer(verb: Verb, analyse: Callable[[Prepared], Result], ready: Prepared) -> Result:
    """What a verb says of a prepared checkpoint, on the command line and in Python.

    Args:
        verb: The verb.
        analyse: From the prepared checkpoint, at the measuring precision, to the result.
        ready: The prepared checkpoint.

    Returns:
        The result with all that limits it, and the seconds of each stage.

    Raises:
        ValueError: If the step is rounded and the verb has no answer for that.
    """
    if ready.step.along is not None and not verb.rounded:
        raise ValueError(
            f"estimator.rounded_step=true acts in {MEASURE.name}: the shares of {verb.name} "
            "sum to v, which rounding is no part of. Set it to false."
        )
    clock = ready.clock
    timed = nullcontext() if verb.own_stages else clock.stage(verb.name)
    with at_precision(ready.policy, ready.config.precision.measuring), timed:
        analysed = analyse(ready)
    return replace(analysed, warnings=_warnings(verb, ready, analysed), timing=dict(clock.seconds))


class MeasuringRunner(Runner[SettingsInForce, Result]):
    """Runs a measuring verb on the items of a study.

    Attributes:
        question: What to do at each checkpoint.
        verb: What the loop knows of it.
        config: The checkpoints and settings.
    """

    def __init__(
        self, question: type[Question], config: MeasureConfig, draw: Draw | None, prepare: Prepare
    ) -> None:
        """Look at the folders that will be written into.

        Args:
            question: What to do at each checkpoint.
            config: The checkpoints and settings.
            draw: Makes the figure of a result; None for no figure.
            prepare: Makes a checkpoint ready.
        """
        inputs = inputs_of(config)
        super().__init__(run_directory(config.output.directory), inputs)
        self.question = question
        self.verb = verb = question.verb
        self.config = config
        self._draw = draw
        self._prepare = prepare
        logs = config.detailed_logging
        if logs.enabled and verb == MEASURE:
            place = logs.output_directory or self.folder / "logs"
            chosen = logs.output_directory is not None
            key = "detailed_logging.output_directory" if chosen else "--out (output.directory)"
            require_writable(place, key)
        if logs.enabled and logs.output_directory is not None:
            require_apart(logs.output_directory, inputs)

    def plan(self) -> list[MeasuredItem]:
        """One item per checkpoint and update batch; those that are there are read, not made."""
        self._items = study_items(self.verb.name, self.config, self.folder)
        return self._items

    def earlier(self, item: MeasuredItem) -> Earlier[Result] | None:
        """The result of an earlier run, and the settings beside it."""
        if not item.target.exists():
            return None
        result = load_result(item.target)
        settings = of_measurement(load_config(item.target / CONFIG))
        return Earlier(Identity(settings, result.provenance.made_from), result)

    def compare(self, item: MeasuredItem, earlier: Earlier[Result]) -> None:
        """Compare settings, and paths by their content where that is recorded."""
        by_content = PATH_KEYS if earlier.identity.digests else ()
        require_same(item.target, earlier.identity, item.identity, by_content)
        if not by_content:
            log.warning(
                "%s holds no digests of what it was made from, so files may differ.", item.target
            )
        if earlier.result is not None:
            for difference in content_differences(vars(earlier.result.provenance)):
                log.warning("%s was made with %s.", item.target, difference)

    def how_to_go_on(self, items: list[MeasuredItem]) -> str | None:
        """How to go on, if an item is finished."""
        if not any(item.target.exists() for item in items):
            return None
        return f"Finished items are kept: go on by the same command with --out {self.folder}."

    def join(self, items: list[MeasuredItem], results: list[Result]) -> None:
        """Write the tables of the study when all items are done; a single one has its own."""
        if 1 < len(items) == len(self._items):
            from_first(lambda: write_study(self.verb, self.folder, items, results))

    def make(self, item: MeasuredItem) -> Result:
        """Analyse a checkpoint and write its folder."""
        verb = self.verb
        checkpoint = item.checkpoint
        clock = Clock()
        log.info("%s of %s", verb.name, checkpoint.path)
        require_memory(verb.name, checkpoint.name, checkpoint.path, item.settings.config)
        ready = self._prepare(checkpoint, item.settings, clock)
        result = answer(verb, self.question.analyse, ready)
        from_first(lambda: self._write(item, ready, result))
        saved = result.as_saved()
        if len(self._items) > 1:  # tables of tokens are large: those of a study wait on the disk
            saved = replace(saved, tables=Tables(item.target))
        return saved

    def _write(self, item: MeasuredItem, ready: Prepared, result: Result) -> None:
        """Write the folder of an item; it appears last, when all of it is there."""
        config = item.settings.config
        data = config.batch_config
        figure = self.question.figure_file
        # results without their log are not finished, nor is there a log of no results
        with ExitStack() as failed:
            with whole_folder(item.target) as folder:
                result.save(folder)
                if self._draw is not None and figure:
                    try:
                        self._draw(result).savefig(folder / figure, dpi=150)
                    except Exception as error:  # those of matplotlib have no class in common
                        log.warning("%s", figure_left_out(error))
                content = resolved_content(config, self.folder, item.target, seeds=data.seeds)
                (folder / CONFIG).write_bytes(content)
                if data.save_batches:
                    ready.E.save(folder / "E.parquet")
                    ready.U.save(folder / "U.parquet")
                logs = self.folder / "logs"
                for path in () if result.write_log is None else result.write_log(result, logs):
                    failed.callback(path.unlink, missing_ok=True)
                if not (self.folder / CONFIG).exists():  # that of the whole run
                    filled = {key for x in self._items for key in x.settings.filled}
                    seeds = self.config.batch_config.seeds
                    content = resolved_content(self.config, self.folder, seeds=seeds, omit=filled)
                    write_bytes(self.folder / CONFIG, content)
            failed.pop_all()


def _warnings(verb: Verb, ready: Prepared, result: Result) -> tuple[str, ...]:
    """What limits the numbers, each sentence once: the step, the batches, then the result's own."""
    sentences = [*ready.step.warnings]
    if verb.errors_over_E:
        sentences += too_few_for_modes(ready.E.n_prompts)
    if ready.config.batch_config.fixed_prompts:
        if prompts_of(ready.E) <= prompts_of(ready.U):
            sentences.append(
                "Every prompt of E is one of U: the change is on prompts that made the step, and "
                "says nothing of others."
            )
        sentences.append(
            "batch_config.fixed_prompts: errors are over prompts, as if other prompts could be "
            "drawn. For a statement about these prompts alone they are too large."
        )
    return tuple(dict.fromkeys((*sentences, *result.warnings)))
