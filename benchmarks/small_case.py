"""CPU seconds of verbs on the toy, beside its model passes and the imports, now and before.

    python -m benchmarks.small_case CHECKPOINT --before ../isentrope-before
                                                writes docs/results/small_case.md

CHECKPOINT is a step of `isentrope demo`, and twenty steps of `train` begin at that demo's
fine-tuned model; `--before` names a checkout of an older commit, which is run in turn with this
one. Seconds are of the processor (user and system) of a process of its own,
one thread, the least of `--repeats`. Passes are what the same verb spends in evaluations of the
model, forward, in forward mode and backward, and in drawing responses.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from validation.origin import write_results

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "small_case.md"
CONFIG = ROOT / "configs" / "measure_addition.yaml"
TRAINING = ROOT / "configs" / "train_toy.yaml"
VERBS = ("check", "plan", "measure", "influence", "train")
WRITING = ("measure", "influence", "train")
TABLE = "| verb | before, s | now, s | passes, s | of the passes | of the imports |"
STARTED = "from isentrope.cli.main import app; app()"
IMPORTED = "import isentrope.cli.session, transformers.models.qwen2.modeling_qwen2, peft"


def seconds(source: Path, arguments: Sequence[str]) -> float:
    """Processor seconds of a Python process that finds the library in a checkout.

    Raises:
        RuntimeError: If it fails, with the end of what it said.
    """
    environment = os.environ | {"PYTHONPATH": f"{source / 'src'}:{ROOT}", "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's modules are compiled once
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    ended = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True
    )
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {ended.stderr[-2000:]}")
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def of_verb(verb: str, checkpoint: Path, folder: Path) -> list[str]:
    """The command line of a verb, in a new run folder."""
    out = ["--out", tempfile.mkdtemp(dir=folder) + "/run"] if verb in WRITING else []
    if verb == "train":
        model = f"model.path={checkpoint.parents[1] / 'fine_tuning' / 'model'}"
        return [verb, str(TRAINING), "--set", model, "--set", "training.steps=20", *out]
    return [verb, str(CONFIG), "--set", f"checkpoint.checkpoint_path={checkpoint}", *out]


def counted(arguments: list[str]) -> None:
    """Run a verb here, and print what it spends in passes of the model."""
    import torch
    from transformers.models.qwen2.modeling_qwen2 import Qwen2Model

    from isentrope.cli.main import app
    from isentrope.policy import own_logits
    from isentrope.policy.language_model import Policy
    from isentrope.sampling import draw

    spent, depth = [0.0], [0]

    def timed(owner: Any, name: str) -> None:
        of: Callable[..., Any] = getattr(owner, name)

        def run(*args: Any, **kwargs: Any) -> Any:
            depth[0] += 1
            start = time.process_time()
            try:
                return of(*args, **kwargs)
            finally:
                depth[0] -= 1
                if not depth[0]:
                    spent[0] += time.process_time() - start

        setattr(owner, name, run)

    timed(Policy, "_at")
    timed(Policy, "packed_hidden")
    timed(own_logits, "own_logits")
    timed(draw, "_generate")
    timed(Qwen2Model, "forward")  # of trainers, which call the model themselves
    timed(torch.autograd, "grad")
    timed(torch.autograd, "backward")
    timed(torch.Tensor, "backward")
    sys.argv = ["isentrope", *arguments]
    with suppress(SystemExit):
        app(standalone_mode=False)
    Path(os.environ["SMALL_CASE_PASSES"]).write_text(json.dumps(spent[0]))


def rows(checkpoint: Path, older: Path | None, verbs: Sequence[str], repeats: int) -> list[str]:
    """A row of the table a verb, and the lines about imports."""
    imports = min(seconds(ROOT, ["-c", IMPORTED]) for _ in range(repeats))
    torch_alone = min(seconds(ROOT, ["-c", "import torch"]) for _ in range(repeats))
    lines: list[str] = []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        os.environ["SMALL_CASE_PASSES"] = str(folder / "passes.json")
        for verb in verbs:
            now, then = list[float](), list[float]()
            for _ in range(repeats):  # in turn: other work on the machine slows both alike
                for source, found in ((older, then), (ROOT, now)):
                    if source is not None:
                        call = of_verb(verb, checkpoint, folder)
                        found.append(seconds(source, ["-c", STARTED, *call]))
            call = of_verb(verb, checkpoint, folder)
            seconds(ROOT, ["-m", "benchmarks.small_case", "--counted", *call])
            passes = json.loads((folder / "passes.json").read_text())
            was = f"{min(then):.1f}" if then else ""
            least = min(now)
            lines.append(
                f"| {verb} | {was} | {least:.1f} | {passes:.1f} | {least / passes:.2f} | "
                f"{least / imports:.2f} |"
            )
            print(lines[-1], flush=True)
    lines.append(f"\nImports take {imports:.1f} s, of which torch {torch_alone:.1f} s.")
    return lines


def page(lines: Sequence[str]) -> str:
    """The page with a new table; what stands below the line of its machine is kept."""
    machine = (
        f"`python -m benchmarks.small_case CHECKPOINT --before CHECKOUT`, "
        f"{time.strftime('%Y-%m-%d')}, {platform.machine()}, CPython {platform.python_version()}, "
        "one thread."
    )
    head = "# What the small case costs\n"
    kept = PAGE.read_text(encoding="utf-8").split("\n## ", 1) if PAGE.exists() else [""]
    notes = f"\n## {kept[1]}" if len(kept) > 1 else ""
    table = "\n".join((TABLE, "|---|" + "---|" * (TABLE.count("|") - 2), *lines))
    return f"{head}\n{machine}\n\n{table}\n{notes}"


def main() -> None:
    """Run what the command line asks for."""
    if sys.argv[1:2] == ["--counted"]:
        counted(sys.argv[2:])
        return
    parser = argparse.ArgumentParser()
    parser.add_argument("checkpoint", type=Path)
    parser.add_argument("--before", type=Path, help="a checkout of an older commit")
    parser.add_argument("--verbs", nargs="+", default=VERBS)
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    lines = rows(chosen.checkpoint.resolve(), chosen.before, chosen.verbs, chosen.repeats)
    write_results(PAGE, page(lines))


if __name__ == "__main__":
    main()
