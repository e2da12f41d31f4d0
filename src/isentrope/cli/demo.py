"""`isentrope demo` on the command line; `cli.chapters` does the work, verb by verb."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from isentrope.commands.command import Command, Conclusion


@dataclass(frozen=True, kw_only=True)
class DemoCommand(Command):
    """Train a toy policy, and see which tokens spend its entropy."""

    name = "demo"
    packages = ("trl",)
    kept = "What was finished is kept. Run it again with another --out."
    room = 9

    folder: Annotated[str, Option("--out", help="Run folder, new.")] = "runs/demo"
    steps: Annotated[int, Option(min=10, help="Dr. GRPO steps.")] = 40
    fine_tuning_steps: Annotated[int, Option(min=1, help="Supervised steps.")] = 400
    evaluation_size: Annotated[int, Option(min=16, help="Responses in E.")] = 256
    seed: Annotated[int, Option(help="Fixes everything.")] = 0

    def read(self) -> None:
        """Refuse a folder that is not new, and numbers out of range."""
        from isentrope.cli.demo_settings import chapters, require_empty
        from isentrope.system.outputs import require_apart, require_writable

        require_writable(self.folder, "--out")
        require_apart(self.folder)
        require_empty(Path(self.folder))
        chapters(
            Path(self.folder), self.steps, self.fine_tuning_steps, self.evaluation_size, self.seed
        )

    def run(self) -> Any:
        """Run every verb in turn, each with its own tables."""
        from isentrope.cli.chapters import demo

        return demo(
            self.folder, self.steps, self.fine_tuning_steps, self.evaluation_size, self.seed
        )

    def shown(self, outcome: Any) -> Iterator[Any]:
        """The verdict."""
        for number, claim in enumerate(outcome, 1):
            yield Conclusion(f"{number}. {claim}")
