"""Options of the verbs: each function takes those of one kind of verb and returns what it asks.

`--help` reads these signatures: nothing here may import torch, and annotations are not strings,
which Typer would compile one by one.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from isentrope.results.verbs import Kind

ConfigFile = Annotated[str, typer.Argument(metavar="CONFIG", help="A YAML file of settings.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="SECTION.KEY=VALUE", help="Override a setting; repeatable."),
]
OutFolder = Annotated[
    str | None, typer.Option("--out", metavar="FOLDER", help="Run folder (output.directory).")
]
Checkpoints = Annotated[
    list[str] | None,
    typer.Option(
        "--checkpoints",
        metavar="PATTERN",
        help='Checkpoints to look at, as "run/training_state/*" in quotes; repeatable.',
    ),
]
Repeats = Annotated[
    int | None,
    typer.Option("--repeats", min=1, help="Fresh update batches at each checkpoint."),
]
NoVerify = Annotated[
    bool,
    typer.Option("--no-verify", help="Read files that were changed after they were written."),
]

Asked = tuple[Any, ...]
"""What a command is called with; of options without a return, what was given by name."""


class Changes:
    """Settings that replace those of a configuration.

    Attributes:
        texts: Values of `--set`, as "section.key=value".
        values: Values of other options by the key they set; None leaves it as it is.
    """

    def __init__(self, texts: Sequence[str] | None, values: Mapping[str, Any]) -> None:
        self.texts = list(texts or ())
        self.values = {key: value for key, value in values.items() if value is not None}


NewRun = Annotated[str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file of settings.")]
Resumed = Annotated[
    str | None, typer.Option("--resume", metavar="RUN", help="Resume this run folder.")
]


def _changes(
    settings: list[str] | None,
    folder: str | None,
    checkpoints: list[str] | None = None,
    repeats: int | None = None,
    no_verify: bool = False,
    **more: Any,
) -> Changes:
    values = {
        "checkpoint.verify": False if no_verify else None,
        "output.directory": folder,
        "checkpoint.checkpoint_path": checkpoints or None,
        "batch_config.repeats": repeats,
    }
    return Changes(settings, values | more)


def fine_tuned(
    config: NewRun = None,
    resume: Resumed = None,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration to start with, or a run to resume; `session` acts on `no_verify`.

    Returns:
        The configuration, the run and the overrides.

    Raises:
        ValueError: If none or both are given, or a folder for a run that has one.
    """
    if (config is None) == (resume is None):
        raise ValueError("Give a CONFIG to start a run, or --resume RUN to resume one.")
    if resume is not None and folder is not None:
        raise ValueError("--resume goes on in the run's own folder: leave --out away.")
    return config, resume, None, _changes(settings, folder)


def evaluated(
    config: ConfigFile,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration of checkpoints, and its overrides."""
    return config, None, None, _changes(settings, folder, no_verify=no_verify)


def checked(
    config: Annotated[
        str,
        typer.Argument(metavar="CONFIG", help="A YAML file of settings, or a checkpoint folder."),
    ],
    replay: Annotated[
        bool,
        typer.Option("--replay", help="Compare the recorded step with the one that was taken."),
    ] = False,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration, or the folder of a checkpoint."""
    return config, replay, _changes(settings, folder, no_verify=no_verify)


def measured(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration that may be put to several checkpoints and update batches."""
    return config, _changes(settings, folder, checkpoints, repeats, no_verify)


def tried(
    control: Annotated[
        str,
        typer.Argument(
            metavar="CONTROL", help="Name of a control, several with commas, or all that act."
        ),
    ],
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    strength: Annotated[
        list[float] | None,
        typer.Option("--strength", help="Multiple of the default strength; repeatable."),
    ] = None,
    change: Annotated[
        float | None,
        typer.Option("--change", help="Look for the strength that changes entropy by this a step."),
    ] = None,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """Controls, and how strong.

    Returns:
        The configuration and its overrides.

    Raises:
        ValueError: If both a strength and a change are given, or a strength is not above 0.
    """
    if strength and change is not None:
        raise ValueError("--change looks for the strength, so --strength cannot be given with it.")
    if strength and min(strength) <= 0:
        raise ValueError(f"--strength is a multiple above 0, got {min(strength):g}.")
    trial = {
        "trial.controls": None if control == "all" else control.split(","),
        "trial.strengths": strength or None,
        "trial.change": change,
    }
    return config, _changes(settings, folder, checkpoints, repeats, no_verify, **trial)


def reconciled(
    config: ConfigFile,
    checkpoints: Checkpoints = None,
    repeats: Repeats = None,
    logged: Annotated[
        float | None,
        typer.Option("--logged", help="Entropy that the trainer logged, nats per token."),
    ] = None,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration, and what a trainer logged."""
    more = {"entropies.logged": logged}
    return config, _changes(settings, folder, checkpoints, repeats, no_verify, **more)


def trained(
    config: NewRun = None,
    resume: Resumed = None,
    start: Annotated[
        str | None,
        typer.Option("--from", metavar="CHECKPOINT", help="Start a run where another was."),
    ] = None,
    settings: Overrides = None,
    folder: OutFolder = None,
    no_verify: NoVerify = False,
) -> Asked:
    """A configuration to start with, a run to resume, or a checkpoint to start at.

    Returns:
        The configuration, the run, the checkpoint and the overrides.

    Raises:
        ValueError: If none or several are given, or a folder for a run that has one.
    """
    if sum(given is not None for given in (config, resume, start)) != 1:
        raise ValueError(
            "Give one of a CONFIG to start a run, --resume RUN to resume one, and --from "
            "CHECKPOINT to start a run at a checkpoint of another."
        )
    if resume is not None and folder is not None:
        raise ValueError("--resume goes on in the run's own folder: leave --out away.")
    return config, resume, start, _changes(settings, folder)


def branched(
    checkpoints: Annotated[
        list[str],
        typer.Argument(
            metavar="CHECKPOINT...", help="RUN/training_state/step_N, or a pattern in quotes."
        ),
    ],
    folder: Annotated[str, typer.Option("--out", metavar="FOLDER", help="Where all branches go.")],
    vary: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE[,VALUE]",
            help="Settings to compare with the unchanged ones; repeatable. Several keys in quotes: "
            "all combinations.",
        ),
    ] = None,
    repeats: Annotated[
        int, typer.Option(min=1, help="Branches per checkpoint and setting, each a fresh draw.")
    ] = 3,
    steps: Annotated[int, typer.Option(min=1, help="Steps of each branch.")] = 10,
    prompts: Annotated[
        int, typer.Option(min=2, help="Held-out prompts that starts and ends are evaluated on.")
    ] = 256,
    samples: Annotated[int, typer.Option(min=1, help="Responses to each of them.")] = 4,
    changes: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="SECTION.KEY=VALUE", help="A setting of every branch; repeatable."
        ),
    ] = None,
    no_verify: NoVerify = False,
) -> None:
    """Checkpoints, and what to do from there."""


def converted(
    source: Annotated[
        str, typer.Argument(metavar="SOURCE", help="The folder of the other trainer's checkpoint.")
    ],
    out: Annotated[str, typer.Option("--out", help="Checkpoint folder, new.")],
    model: Annotated[
        str | None,
        typer.Option(
            metavar="FOLDER",
            help="With config.json and the tokenizer, or with adapter_config.json for an adapter.",
        ),
    ] = None,
) -> None:
    """A checkpoint to write anew."""


def planned(
    config: ConfigFile,
    verbs: Annotated[
        list[str] | None,
        typer.Option("--verb", metavar="VERB", help="Plan this verb only; repeatable."),
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Such as 16GB; what is free if left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plans as JSON.")] = False,
    settings: Overrides = None,
) -> None:
    """A configuration that is planned and not run."""


def reported(
    run: Annotated[str, typer.Argument(metavar="RUN", help="A run folder.")],
    other: Annotated[
        str | None, typer.Argument(metavar="[OTHER]", help="Another, to stand beside it.")
    ] = None,
    checkpoint: Annotated[
        str | None, typer.Option(metavar="NAME", help="The one to show in full; the last measured.")
    ] = None,
    evaluations: Annotated[
        list[str] | None,
        typer.Option(
            "--evaluation", metavar="FOLDER", help="An evaluation of the run; repeatable."
        ),
    ] = None,
    no_verify: NoVerify = False,
) -> None:
    """One run or two."""


def demonstrated(
    folder: Annotated[str, typer.Option("--out", help="Run folder, new.")] = "runs/demo",
    steps: Annotated[int, typer.Option(min=10, help="Dr. GRPO steps.")] = 40,
    fine_tuning_steps: Annotated[int, typer.Option(min=1, help="Supervised steps.")] = 400,
    evaluation_size: Annotated[int, typer.Option(min=16, help="Responses in E.")] = 256,
    seed: Annotated[int, typer.Option(help="Fixes everything.")] = 0,
) -> None:
    """The sizes of the demo."""


def shown(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file; left out: defaults.")
    ] = None,
    kind: Annotated[
        Kind | None,
        typer.Option("--for", help="The verb whose defaults are shown; measure if left out."),
    ] = None,
    settings: Overrides = None,
) -> Asked:
    """A configuration, or the verb whose defaults are wanted.

    Returns:
        Both, and the overrides.

    Raises:
        ValueError: If both are given.
    """
    if config is not None and kind is not None:
        raise ValueError(f"{config} says itself which verb it is for: leave --for away.")
    return config, kind, settings or ()


def validated(config: ConfigFile, settings: Overrides = None) -> None:
    """A configuration that is not run."""
