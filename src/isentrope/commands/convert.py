"""`isentrope convert` on the command line; `checkpoint.convert` does the work."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from isentrope.commands.command import Command, Conclusion


@dataclass(frozen=True, kw_only=True)
class ConvertCommand(Command):
    """Write a checkpoint of FSDP, verl or DeepSpeed as one to measure."""

    name = "convert"

    source: Annotated[
        str, Argument(metavar="SOURCE", help="The folder of the other trainer's checkpoint.")
    ]
    out: Annotated[str, Option(help="Checkpoint folder, new.")]
    model: Annotated[
        str | None,
        Option(
            metavar="FOLDER",
            help="With config.json and the tokenizer, or with adapter_config.json for an adapter.",
        ),
    ] = None
    run_settings: Annotated[
        str | None,
        Option("--settings", metavar="FILE", help="verl's .hydra/config.yaml of the run."),
    ] = None

    def read(self) -> None:
        """Look for the folders and files."""
        from isentrope.checkpoint.convert.source import require_convertible

        require_convertible(Path(self.source), Path(self.out), self.model, self.run_settings)

    def run(self) -> Any:
        """Convert the checkpoint."""
        from isentrope.checkpoint.convert.write import convert

        return convert(self.source, self.out, self.model, self.run_settings)

    def shown(self, outcome: Any) -> Iterator[Any]:
        """What the checkpoint holds, and what to do next."""
        states = (
            "no optimizer state, so that no step can be computed"
            if outcome.parameters is None
            else f"the optimizer's state of {outcome.parameters} parameters"
        )
        yield f"{outcome.layout}: {outcome.tensors} weights, and {states}."
        yield Conclusion(f"Wrote {outcome.folder}")
        yield f"Next: isentrope check {outcome.folder}"
