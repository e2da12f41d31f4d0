"""Which TRL scripts are followed? v against the step taken, and the probe with TRL's own defaults.

    python -m validation.trl_scripts

Each row is a training script: TRL's trainer over a saved model of two layers, with TRL's defaults
but for what the row names, the sizes, and learning rate 1e-3. It runs three times, for three steps.

1. In float32 (unless the row says otherwise), every step saved. v is `ise.optimizer_step(policy,
   U, CHECKPOINT)` on the batch of the trainer's loss, with nothing but the row's overrides given.
   Its error is |v − (θ' − θ)/η| / |(θ' − θ)/η|, the larger of two steps.
2. The same with `ise.EntropyProbe` attached: the parameters at the end must be equal bit for bit.
3. With the precision that TRL takes by default (bf16), and the probe: whether it reads.

A script passes if v is the step within 1e-4; or if v is refused in a sentence, or noted in the
step's warnings, that holds the word of the row; and if the probe reads in both of its runs or says
why not with the word of the row. Where a model has no derivatives the probe measures each step and
says why it does not predict it.

Writes docs/results/trl_scripts.md.
"""

from __future__ import annotations

import argparse
import logging
import math
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import date
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers
from datasets import Dataset, disable_progress_bars
from torch import Tensor
from transformers import PrinterCallback
from transformers.utils.logging import disable_progress_bar
from trl import GRPOConfig, GRPOTrainer, RLOOConfig, RLOOTrainer

import isentrope as ise
from isentrope.nouns.vectors import axpy, norm
from isentrope.sampling.tasks.addition import character_tokenizer
from validation.origin import write_results
from validation.trl_losses import Recorder, rollouts_of
from validation.trl_script_table import CHAT_TEMPLATE, MODELS, SCRIPTS, UNPREDICTED, Script

STEPS, LENGTH, GROUP, PROMPTS = 3, 8, 4, 2


@dataclass(frozen=True)
class Outcome:
    """What became of a script.

    Attributes:
        script: The script.
        error: Of v, the larger of two steps; NaN where v is refused.
        sentence: Of the refusal; empty where v is computed.
        warnings: Of the step.
        readings: Of the probe, in float32 and with TRL's default precision.
        probe: Its sentence where it does not read.
        equal: Whether the parameters are those of the run without the probe.
    """

    script: Script
    error: float
    sentence: str
    warnings: tuple[str, ...]
    readings: tuple[int, int]
    probe: str
    equal: bool

    @property
    def verdict(self) -> str:
        """right, noted, refused, or WRONG with what is wrong."""
        script = self.script
        if self.sentence:
            expected = bool(script.refused) and script.refused in self.sentence
            step = "refused" if expected else "WRONG refusal"
        elif self.error <= script.tolerance:
            step = "WRONG: not refused" if script.refused else "right"
        elif script.unseen:
            step = "no file shows it"
        else:
            said = bool(script.noted) and any(script.noted in line for line in self.warnings)
            step = "noted" if said else "WRONG"
        if "the run ended" in self.probe:
            return f"{step}; WRONG: the probe ended the run"
        if not self.equal:
            return f"{step}; WRONG: the probe changed the run"
        measured = UNPREDICTED in self.probe
        if measured != (script.probe == UNPREDICTED):
            return f"{step}; WRONG: the probe {'measures alone' if measured else 'predicts'}"
        if min(self.readings) == STEPS:
            if measured:
                return f"{step}; the probe measures"
            return f"{step}; WRONG: the probe reads" if script.probe else step
        expected = bool(script.probe) and script.probe in self.probe
        return f"{step}; the probe says why not" if expected else f"{step}; WRONG: the probe is off"


def save_model(name: str, folder: Path) -> Path:
    """A model of a configuration in `MODELS` with random weights, and its tokenizer."""
    if folder.exists():
        return folder
    torch.manual_seed(0)
    config = MODELS[name]()
    kind = transformers.AutoModelForCausalLM._model_mapping[type(config)]
    tokenizer = character_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE
    kind(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def make_trainer(script: Script, base: Path, folder: Path, **options: Any) -> Any:
    """The script's trainer: TRL's defaults, the sizes here, and the options of the script."""
    usual = {
        "output_dir": str(folder),
        "max_steps": STEPS,
        "save_strategy": "no",
        "per_device_train_batch_size": GROUP * PROMPTS,
        "num_generations": GROUP,
        "max_completion_length": LENGTH,
        "learning_rate": 1e-3,
        "use_cpu": True,
        "report_to": "none",
        "disable_tqdm": True,
        "logging_steps": 1,
        "seed": 0,
    }
    prompts: list[Any] = [f"{a}+{b}=" for a in range(8) for b in range(8)]
    if script.chat:
        prompts = [[{"role": "user", "content": text}] for text in prompts]
    model: Any = str(base)
    if script.prepare is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        script.prepare(model)
    trainer_class, config_class = {
        "grpo": (GRPOTrainer, GRPOConfig),
        "rloo": (RLOOTrainer, RLOOConfig),
    }[script.trainer]
    more: dict[str, Any] = {}
    if script.optimizer is not None:
        model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
        more["optimizers"] = (script.optimizer(list(model.parameters())), None)
    trainer = trainer_class(
        model,
        list(script.rewards),
        args=config_class(**{**usual, **options, **script.options}),
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=transformers.AutoTokenizer.from_pretrained(base, padding_side="left"),
        peft_config=script.adapter,
        **more,
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


def parameters(trainer: Any) -> dict[str, Tensor]:
    """The trained parameters at the end of a run."""
    model = trainer.accelerator.unwrap_model(trainer.model)
    return {name: p.detach() for name, p in model.named_parameters() if p.requires_grad}


class Sentences(logging.Handler):
    """What the library's log says while the probe is attached."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        """Keep a line."""
        self.lines.append(record.getMessage())


def read_probe(script: Script, base: Path, folder: Path, **options: Any) -> tuple[int, str, Any]:
    """Train with the probe at every step.

    Returns:
        Its readings, its sentence where it has none, and the trainer (None where it never trained).
    """
    log = logging.getLogger("isentrope")
    sentences = Sentences()
    log.addHandler(sentences)
    held_out = [f"{a}+{b}=" for a in range(8) for b in (8, 9)]
    trainer = make_trainer(script, base, folder, **options)
    try:
        probe = ise.EntropyProbe(held_out, every=1, size=8).attach(trainer)
    except ValueError as error:
        return 0, str(error), None
    finally:
        log.removeHandler(sentences)
    log.addHandler(sentences)
    try:
        trainer.train()
        if script.adapter is not None:
            trainer.save_model(folder / "last")
    except Exception as error:  # a run that the probe ends is what this looks for
        sentences.lines.append(f"the run ended: {type(error).__name__}: {error}")
    finally:
        log.removeHandler(sentences)
    return len(probe.history), " ".join(sentences.lines), trainer


def compare(
    script: Script, folder: Path, batches: dict[int, Any]
) -> tuple[float, str, tuple[str, ...]]:
    """v at two checkpoints against the steps that were taken from them.

    Returns:
        The larger error, the sentence that refuses v (then the error is NaN), and the warnings.
    """
    errors: list[float] = []
    warnings: dict[str, None] = {}
    for step in range(1, STEPS):
        checkpoint, later = (folder / f"checkpoint-{k}" for k in (step, step + 1))
        try:
            policy = ise.Policy.from_checkpoint(
                checkpoint,
                precision="float32",
                temperature=float(script.options.get("temperature", 1.0)),
            )
            taken = ise.optimizer_step(
                policy, rollouts_of(batches[step]), checkpoint, **script.overrides
            )
        except ValueError as error:
            return math.nan, " ".join(str(error).split()), ()
        except Exception as error:  # a fault of the library, which this table has to show
            return math.nan, f"{type(error).__name__}: {error}", ()
        before, after = policy.theta, ise.Policy.from_checkpoint(later, precision="float32").theta
        moved = {
            name: (after[name].double() - p.double()) / taken.learning_rate
            for name, p in before.items()
        }
        errors.append(norm(axpy(-1.0, moved, taken.direction)) / norm(moved))
        warnings |= dict.fromkeys(taken.warnings)
    return max(errors), "", tuple(warnings)


def run_script(script: Script, folder: Path) -> Outcome:
    """The three runs of a script."""
    base = save_model(script.model, folder / script.model)
    runs = folder / "runs"
    plain = make_trainer(
        script, base, runs, **{"bf16": False, "save_strategy": "steps", "save_steps": 1}
    )
    recorder = Recorder(plain, "_compute_loss")
    plain.train()
    error, sentence, warnings = compare(script, runs, recorder.batches)
    readings, words, probed = read_probe(script, base, folder / "probed", bf16=False)
    equal = probed is None or all(
        torch.equal(p, parameters(probed)[name]) for name, p in parameters(plain).items()
    )
    defaults, more, _ = read_probe(script, base, folder / "defaults")
    return Outcome(script, error, sentence, warnings, (readings, defaults), words or more, equal)


def run_by_name(name: str) -> dict[str, Any]:
    """An outcome without its script, whose functions do not go from process to process."""
    (script,) = (script for script in SCRIPTS if script.name == name)
    with TemporaryDirectory() as folder:
        outcome = run_script(script, Path(folder))
    print(table_row(outcome), flush=True)
    return {key: value for key, value in vars(outcome).items() if key != "script"}


def silence() -> None:
    """Let this process print nothing but the rows."""
    logging.getLogger("isentrope").propagate = False
    disable_progress_bar()
    disable_progress_bars()


def run(scripts: Iterable[Script], processes: int = 1) -> list[Outcome]:
    """Run scripts, each in a folder of its own.

    Args:
        scripts: What to run, of `SCRIPTS`.
        processes: How many at a time.

    Returns:
        An outcome per script.
    """
    chosen = list(scripts)
    names = [script.name for script in chosen]
    if processes == 1:
        results = [run_by_name(name) for name in names]
    else:
        with ProcessPoolExecutor(processes, initializer=silence) as pool:
            results = list(pool.map(run_by_name, names))
    return [Outcome(script, **result) for script, result in zip(chosen, results, strict=True)]


def table_row(outcome: Outcome) -> str:
    """One line of the table."""
    script = outcome.script
    error = "–" if math.isnan(outcome.error) else f"{outcome.error:.1e}"
    expected = script.refused or script.noted or script.probe
    words = outcome.sentence or " ".join(outcome.warnings if script.noted else ()) or outcome.probe
    said = f"`{expected}`" if expected and expected in words else words[:160].replace("|", "/")
    readings = "{} / {}".format(*outcome.readings)
    said = said if expected or "WRONG" in outcome.verdict else ""
    return f"| {script.name} | {error} | {readings} | {outcome.verdict} | {said} |"


def page(outcomes: list[Outcome]) -> str:
    """The results page."""
    versions = ", ".join(f"{n} {version(n)}" for n in ("trl", "peft", "transformers", "torch"))
    wrong = sum("WRONG" in outcome.verdict for outcome in outcomes)
    errors = [o.error for o in outcomes if o.verdict.startswith("right")]
    on = sum(min(o.readings) == STEPS for o in outcomes)
    lines = [
        "# TRL's scripts as they come",
        "",
        "A row is a training script over a tiny model, with TRL's defaults but for what it names.",
        "*Error* is that of v against the step that the trainer took, in float32, with no setting",
        "given. *Readings* are those of the entropy probe in three steps, in float32 and with the",
        "precision that TRL takes by default (bf16). Parameters are compared bit for bit with",
        "those of the run without the probe.",
        "",
        f"Made by `python -m validation.trl_scripts` on {date.today()}, {versions}, CPU.",
        f"{len(outcomes)} scripts, {wrong} of them not as they should be. v is the step in "
        f"{len(errors)}, with errors up to {max(errors):.1e}; the probe reads both runs of {on}.",
        "",
        "| script | error of v | readings | verdict | words |",
        "|---|---|---|---|---|",
        *map(table_row, outcomes),
        "",
    ]
    return "\n".join(lines)


def main() -> None:
    """Run every script and write the page; status 1 if a row is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("docs/results/trl_scripts.md"))
    parser.add_argument("--only", default="", help="scripts whose name has one of these in it")
    parser.add_argument("--processes", type=int, default=2, help="scripts at a time")
    arguments = parser.parse_args()
    names = arguments.only.split(",")
    chosen = [script for script in SCRIPTS if any(name in script.name for name in names)]
    silence()
    outcomes = run(chosen, arguments.processes)
    if not arguments.only:
        write_results(arguments.out, page(outcomes))
    raise SystemExit(any("WRONG" in outcome.verdict for outcome in outcomes))


if __name__ == "__main__":
    main()
