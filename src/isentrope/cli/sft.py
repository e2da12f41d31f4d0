"""`isentrope sft CONFIG`: supervised fine-tuning on a task's demonstrations."""

from __future__ import annotations

from isentrope.cli.app import ConfigFile, OutFolder, Overrides, err, one_sentence, out, overrides


@one_sentence
def sft(config: ConfigFile, settings: Overrides = None, folder: OutFolder = None) -> None:
    """Fine-tune a model on a task's demonstrations, loss on the response alone."""
    from isentrope.config.io import load_config
    from isentrope.config.train import SftConfig
    from isentrope.pipelines.sft import sft as run_sft
    from isentrope.processes import rank
    from isentrope.progress import Progress

    asked = load_config(config, overrides(settings, folder), SftConfig)
    made = run_sft(asked, progress=Progress(err))
    if rank() == 0:
        said = f"Loss of the last step: {made.loss:.4f} nats a token\nWrote {made.model}"
        out.print(said, markup=False, highlight=False, soft_wrap=True)
