"""Options of the verbs: each is declared once, and a verb has a list of them.

`--help` reads these: nothing here may import torch.
"""

import json
from collections.abc import Mapping
from inspect import Parameter
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.results.verbs import ENTROPIES, TRY, Kind


def _option(name: str, kind: Any, info: Any, default: Any = None) -> Parameter:
    """An option, or an argument, by the name that `KEYS` and the verb's function know it by."""
    annotation = Annotated[kind, info]
    return Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


Texts = list[str] | None
Text = str | None
REQUIRED = Parameter.empty

SETTINGS = _option(
    "settings",
    Texts,
    Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable."),
)
NO_VERIFY = _option(
    "no_verify",
    bool,
    Option("--no-verify", help="Read files that were changed after they were written."),
    False,
)
DETAILS = _option(
    "details",
    bool,
    Option("--details", help="Print everything, and not the first screen of it."),
    False,
)
CHANGES = (
    SETTINGS,
    _option(
        "folder", Text, Option("--out", metavar="FOLDER", help="Run folder (output.directory).")
    ),
    NO_VERIFY,
)
CONFIG = _option(
    "config", str, Argument(metavar="CONFIG", help="A YAML file of settings."), REQUIRED
)
NEW_RUN = (
    _option("config", Text, Argument(metavar="[CONFIG]", help="A YAML file of settings.")),
    _option("resume", Text, Option("--resume", metavar="RUN", help="Resume this run folder.")),
)
START = _option(
    "start", Text, Option("--from", metavar="CHECKPOINT", help="Start a run where another was.")
)
CHECKED = (
    _option(
        "config",
        str,
        Argument(metavar="CONFIG", help="A YAML file of settings, or a checkpoint folder."),
        REQUIRED,
    ),
    _option(
        "replay",
        bool,
        Option("--replay", help="Compare the recorded step with the one that was taken."),
        False,
    ),
    *CHANGES,
)
STUDY = (
    _option(
        "checkpoints",
        Texts,
        Option(
            "--checkpoints",
            metavar="PATTERN",
            help='Checkpoints to look at, as "run/training_state/*" in quotes; repeatable.',
        ),
    ),
    _option(
        "repeats",
        int | None,
        Option("--repeats", min=1, help="Fresh update batches at each checkpoint."),
    ),
)
CONTROL = _option(
    "control",
    str,
    Argument(metavar="CONTROL", help="Name of a control, several with commas, or all that act."),
    REQUIRED,
)
STRENGTH = (
    _option(
        "strength",
        list[float] | None,
        Option("--strength", help="Multiple of the default strength; repeatable."),
    ),
    _option(
        "change",
        float | None,
        Option("--change", help="Look for the strength that changes entropy by this a step."),
    ),
)
LOGGED = _option(
    "logged",
    float | None,
    Option("--logged", help="Entropy that the trainer logged, nats per token."),
)
MEASURED = {
    TRY: (CONTROL, CONFIG, *STUDY, *STRENGTH, *CHANGES),
    ENTROPIES: (CONFIG, *STUDY, LOGGED, *CHANGES),
}
"""Measuring verbs that have options of their own."""
BRANCHED = (
    _option(
        "checkpoints",
        list[str],
        Argument(
            metavar="CHECKPOINT...", help="RUN/training_state/step_N, or a pattern in quotes."
        ),
        REQUIRED,
    ),
    _option(
        "folder", str, Option("--out", metavar="FOLDER", help="Where all branches go."), REQUIRED
    ),
    _option(
        "vary",
        Texts,
        Option(
            metavar="KEY=VALUE[,VALUE]",
            help="Settings to compare with the unchanged ones; repeatable. Several keys in quotes: "
            "all combinations.",
        ),
    ),
    _option(
        "repeats",
        int,
        Option(min=1, help="Branches per checkpoint and setting, each a fresh draw."),
        3,
    ),
    _option("steps", int, Option(min=1, help="Steps of each branch."), 10),
    _option(
        "prompts",
        int,
        Option(min=2, help="Held-out prompts that starts and ends are evaluated on."),
        256,
    ),
    _option("samples", int, Option(min=1, help="Responses to each of them."), 4),
    _option(
        "changes",
        Texts,
        Option("--set", metavar="SECTION.KEY=VALUE", help="A setting of every branch; repeatable."),
    ),
    NO_VERIFY,
)
CONVERTED = (
    _option(
        "source",
        str,
        Argument(metavar="SOURCE", help="The folder of the other trainer's checkpoint."),
        REQUIRED,
    ),
    _option("out", str, Option("--out", help="Checkpoint folder, new."), REQUIRED),
    _option(
        "model",
        Text,
        Option(
            metavar="FOLDER",
            help="With config.json and the tokenizer, or with adapter_config.json for an adapter.",
        ),
    ),
    _option(
        "run_settings",
        Text,
        Option("--settings", metavar="FILE", help="verl's .hydra/config.yaml of the run."),
    ),
)
PLANNED = (
    CONFIG,
    _option(
        "verbs",
        Texts,
        Option("--verb", metavar="VERB", help="Plan this verb only; repeatable."),
    ),
    _option("memory", Text, Option(metavar="SIZE", help="Such as 16GB; what is free if left out.")),
    _option("as_json", bool, Option("--json", help="Print the plans as JSON."), False),
    SETTINGS,
)
REPORTED = (
    _option("run", str, Argument(metavar="RUN", help="A run folder."), REQUIRED),
    _option("other", Text, Argument(metavar="[OTHER]", help="Another, to stand beside it.")),
    _option(
        "checkpoint",
        Text,
        Option(metavar="NAME", help="The one to show in full; the last measured."),
    ),
    _option(
        "evaluations",
        Texts,
        Option("--evaluation", metavar="FOLDER", help="An evaluation of the run; repeatable."),
    ),
    NO_VERIFY,
)
DEMONSTRATED = (
    _option("folder", str, Option("--out", help="Run folder, new."), "runs/demo"),
    _option("steps", int, Option(min=10, help="Dr. GRPO steps."), 40),
    _option("fine_tuning_steps", int, Option(min=1, help="Supervised steps."), 400),
    _option("evaluation_size", int, Option(min=16, help="Responses in E."), 256),
    _option("seed", int, Option(help="Fixes everything."), 0),
)
SHOWN = (
    _option("config", Text, Argument(metavar="[CONFIG]", help="A YAML file; left out: defaults.")),
    _option(
        "kind",
        Kind | None,
        Option("--for", help="The verb whose defaults are shown; measure if left out."),
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


def asked(given: Mapping[str, Any]) -> Mapping[str, Any]:
    """What a verb is called with.

    Args:
        given: Options by name; `session` acts on `no_verify` and `details`.

    Returns:
        Those that were given; of a verb with `SETTINGS`, all that change one as `overrides`.
    """
    named = {
        k: v
        for k, v in given.items()
        if v not in (None, []) and k not in ("no_verify", DETAILS.name)
    }
    if SETTINGS.name not in given:
        return named
    if "control" in named:
        every = named["control"] == "all"
        named["control"] = None if every else named["control"].split(",")
    set_by = [(key, named.pop(option)) for option, key in KEYS.items() if option in named]
    changes = [f"{key}={json.dumps(value)}" for key, value in set_by]
    return named | {"overrides": [*named.pop(SETTINGS.name, ()), *changes]}
