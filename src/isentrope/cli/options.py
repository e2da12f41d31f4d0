"""Options of the verbs: each is declared once, and a verb has a list of them.

`--help` reads these: nothing here may import torch.
"""

from inspect import Parameter
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.results.verbs import ENTROPIES, TRY, Kind

Texts = list[str] | None
Text = str | None
REQUIRED = Parameter.empty


def _option(
    name: str,
    kind: Any,
    help: str,
    flag: str = "",
    metavar: str | None = None,
    default: Any = None,
    least: int | None = None,
) -> Parameter:
    """An option by the name that `KEYS` and the verb know it by: its flag, where none is given."""
    info = Option(*flag.split(), metavar=metavar, help=help, min=least)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


def _argument(
    name: str, metavar: str, help: str, kind: Any = str, default: Any = REQUIRED
) -> Parameter:
    """An argument likewise."""
    info = Argument(metavar=metavar, help=help)
    return Parameter(
        name, Parameter.KEYWORD_ONLY, default=default, annotation=Annotated[kind, info]
    )


_FILE, _SETTING = "A YAML file of settings.", "SECTION.KEY=VALUE"

SETTINGS = _option("settings", Texts, "Override a setting; repeatable.", "--set", _SETTING)
NO_VERIFY = _option(
    "no_verify",
    bool,
    "Read files that were changed after they were written.",
    "--no-verify",
    default=False,
)
DETAILS = _option(
    "details", bool, "Print everything, and not the first screen of it.", "--details", default=False
)
CHANGES = (
    SETTINGS,
    _option("folder", Text, "Run folder (output.directory).", "--out", "FOLDER"),
    NO_VERIFY,
)
CONFIG = _argument("config", "CONFIG", _FILE)
NEW_RUN = (
    _argument("config", "[CONFIG]", _FILE, Text, None),
    _option("resume", Text, "Resume this run folder.", metavar="RUN"),
)
START = _option("start", Text, "Start a run where another was.", "--from", "CHECKPOINT")
CHECKED = (
    _argument("config", "CONFIG", "A YAML file of settings, or a checkpoint folder."),
    _option(
        "replay",
        bool,
        "Compare the recorded step with the one that was taken.",
        "--replay",
        default=False,
    ),
    *CHANGES,
)
STUDY = (
    _option(
        "checkpoints",
        Texts,
        'Checkpoints to look at, as "run/training_state/*" in quotes; repeatable.',
        metavar="PATTERN",
    ),
    _option("repeats", int | None, "Fresh update batches at each checkpoint.", least=1),
)
CONTROL = _argument(
    "control", "CONTROL", "Name of a control, several with commas, or all that act."
)
STRENGTH = (
    _option("strength", list[float] | None, "Multiple of the default strength; repeatable."),
    _option("change", float | None, "Look for the strength that changes entropy by this a step."),
)
LOGGED = _option("logged", float | None, "Entropy that the trainer logged, nats per token.")
MEASURED = {
    TRY: (CONTROL, CONFIG, *STUDY, *STRENGTH, *CHANGES),
    ENTROPIES: (CONFIG, *STUDY, LOGGED, *CHANGES),
}
"""Measuring verbs that have options of their own."""
CONVERTED = (
    _argument("source", "SOURCE", "The folder of the other trainer's checkpoint."),
    _option("out", str, "Checkpoint folder, new.", default=REQUIRED),
    _option(
        "model",
        Text,
        "With config.json and the tokenizer, or with adapter_config.json for an adapter.",
        metavar="FOLDER",
    ),
    _option("run_settings", Text, "verl's .hydra/config.yaml of the run.", "--settings", "FILE"),
)
PLANNED = (
    CONFIG,
    _option("verbs", Texts, "Plan this verb only; repeatable.", "--verb", "VERB"),
    _option("memory", Text, "Such as 16GB; what is free if left out.", metavar="SIZE"),
    _option("as_json", bool, "Print the plans as JSON.", "--json", default=False),
    SETTINGS,
)
REPORTED = (
    _argument("run", "RUN", "A run folder."),
    _argument("other", "[OTHER]", "Another, to stand beside it.", Text, None),
    _option("checkpoint", Text, "The one to show in full; the last measured.", metavar="NAME"),
    _option(
        "evaluations",
        Texts,
        "An evaluation of the run; repeatable.",
        "--evaluation",
        "FOLDER",
    ),
    _option("out", Text, "Where the page goes; the run folder.", metavar="FOLDER"),
    NO_VERIFY,
)
DEMONSTRATED = (
    _option("folder", str, "Run folder, new.", "--out", default="runs/demo"),
    _option("steps", int, "Dr. GRPO steps.", default=40, least=10),
    _option("fine_tuning_steps", int, "Supervised steps.", default=400, least=1),
    _option("evaluation_size", int, "Responses in E.", default=256, least=16),
    _option("seed", int, "Fixes everything.", default=0),
)
SHOWN = (
    _argument("config", "[CONFIG]", "A YAML file; left out: defaults.", Text, None),
    _option(
        "kind",
        Kind | None,
        "The verb whose defaults are shown; measure if left out.",
        "--for",
    ),
    SETTINGS,
)

KEYS = {
    "control": "trial.controls",
    "strength": "trial.strengths",
    "change": "trial.change",
    "logged": "entropies.logged",
    "folder": "output.directory",
    "checkpoints": "checkpoint.checkpoint_path",
    "repeats": "batch_config.repeats",
}
"""Settings that an option sets, of verbs with `SETTINGS`."""
