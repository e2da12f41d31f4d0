"""`isentrope train CONFIG` and `isentrope train --resume RUN`: Dr. GRPO with the online probe."""

from __future__ import annotations

from typing import Annotated

import typer

from isentrope.cli.app import OutFolder, Overrides, err, one_sentence, out, overrides


@one_sentence
def train(
    config: Annotated[
        str | None, typer.Argument(metavar="[CONFIG]", help="A YAML file of settings.")
    ] = None,
    resume: Annotated[
        str | None, typer.Option("--resume", metavar="RUN", help="Go on with this run folder.")
    ] = None,
    settings: Overrides = None,
    folder: OutFolder = None,
) -> None:
    """Train a policy by Dr. GRPO, leaving checkpoints that can be measured; or go on with a run."""
    from isentrope.config.io import load_config
    from isentrope.config.train import TrainConfig
    from isentrope.pipelines.train import resume as resume_run
    from isentrope.pipelines.train import train as train_run
    from isentrope.processes import rank
    from isentrope.progress import Progress

    if (config is None) == (resume is None):
        raise ValueError("Give either a CONFIG to start a run, or --resume RUN to go on with one.")
    if resume is not None:
        if folder is not None:
            raise ValueError("--resume goes on in the run's own folder: leave --out away.")
        made = resume_run(resume, settings or (), progress=Progress(err))
    else:
        asked = load_config(str(config), overrides(settings, folder), TrainConfig)
        made = train_run(asked, progress=Progress(err))
    if rank() == 0:
        out.print(f"Wrote {made}", markup=False, highlight=False, soft_wrap=True)
