"""`isentrope demo`: the whole story of a toy policy, each chapter by the verb that tells it.

<folder>/fine_tuning/      the fine-tuned policy
<folder>/                  its Dr. GRPO run with the probe: config.yaml, logs, training_state
<folder>/evaluation/       pass@k and entropy before, halfway and at the end
<folder>/measurements/     measure, influence, kernel and audit, halfway and at the end
<folder>/report.html       all of it on one page
"""

from pathlib import Path

import torch

from isentrope.cli.console import err, out, show
from isentrope.cli.demo_settings import chapters, require_empty
from isentrope.commands.audit import AuditCommand
from isentrope.commands.influence import InfluenceCommand
from isentrope.commands.kernel import KernelCommand
from isentrope.commands.measure import MeasureCommand
from isentrope.reports.report import write_report
from isentrope.results.results import InfluenceResult, MeasureResult
from isentrope.run.lock import noted_if_interrupted, one_writer
from isentrope.verbs.evaluate import evaluate_checkpoints
from isentrope.verbs.prepare import PreparedOnce
from isentrope.verbs.sft import sft
from isentrope.verbs.tables import evaluation_table
from isentrope.verbs.train import train


def demo(
    folder: str, steps: int, fine_tuning_steps: int, evaluation_size: int, seed: int
) -> list[str]:
    """Train a toy policy, see its entropy fall, and find out which tokens do it.

    Args:
        folder: Run folder, new.
        steps: Dr. GRPO steps.
        fine_tuning_steps: Supervised steps.
        evaluation_size: Responses in E.
        seed: Fixes everything.

    Returns:
        The sentences that the report opens with.

    Raises:
        FileExistsError: If the folder is not empty.
    """
    where = Path(folder)
    with one_writer(where):
        require_empty(where)
        torch.set_num_threads(1)  # the toy is too small to share
        fine_tuning, training, evaluation, measurement = chapters(
            where, steps, fine_tuning_steps, evaluation_size, seed
        )
        advice = f"What was finished is in {where}. Run it again with another --out."
        with noted_if_interrupted(lambda: advice):
            _chapter("supervised fine-tuning")
            sft(fine_tuning)
            _chapter(f"{steps} steps of Dr. GRPO, with the probe")
            train(training)
            _chapter("evaluation")
            show(out, [evaluation_table(evaluate_checkpoints(evaluation).results)])
            prepare = PreparedOnce()
            _chapter("measure: what one more step does to entropy")
            run = MeasureCommand.measure(measurement, draw=MeasureCommand.figure(), prepare=prepare)
            show(out, MeasureResult.printed(run.results[-1:]))
            _chapter("influence: which tokens do it")
            run = InfluenceCommand.measure(measurement, prepare=prepare)
            show(out, InfluenceResult.printed(run.results[-1:]))
            _chapter("kernel and audit: how responses are tied, and what the proxies see")
            for verb in (KernelCommand, AuditCommand):
                verb.measure(measurement, prepare=prepare)
            _chapter("report")
            report = write_report(where)
            out.conclude(f"Wrote {report.page}\n")
    return report.claims


def _chapter(title: str) -> None:
    err.rule(f"[bold]{title}", align="left", style="dim")
