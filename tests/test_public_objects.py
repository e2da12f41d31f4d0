"""How public objects look as the result of a cell: one short line, whatever they hold."""

import inspect
from dataclasses import replace
from types import SimpleNamespace
from typing import Literal, get_type_hints

import pandas as pd
import pytest
import torch

import isentrope as ise
from isentrope import oracle
from isentrope.control import controls
from tests import cases
from tests.tiny_checkpoint import settings, tiny

__all__ = ["tiny"]

LONGEST = 200
HOSTILE = "step\n\x1b[31m\u202e" + 300 * "x"
NUMBER = ise.Estimate(
    *(-4.3123456789012345, 0.7512345678901234, -5.8123456789012345, -2.8123456789012345),
    n=24,
    unit="nats per token per η",
    method="prefix",
)
INTERVAL = "-4.31 ± 0.75 [-5.812, -2.812] nats per token per η"
BATCH = cases.ragged(24).with_columns(
    rewards=torch.ones(24), advantages=torch.ones(24), prompt_keys=[HOSTILE] * 24
)
ABSTRACT = {"ProgressCallback", "Result", "Task"}
"""Types that nothing is made of: two say what to write, and one is the base of all results."""
HEADINGS = {
    "policy": SimpleNamespace(name=HOSTILE),
    "provenance": SimpleNamespace(seeds={}),
}


def step(kind=ise.Step):
    policy = cases.lora_policy("llama")
    direction = cases.direction(policy)
    parts = dict.fromkeys(("momentum", "decay", "gradient"), direction)
    weights = torch.ones(24, 9)
    return kind(direction, direction, parts, weights, "ab", 1e-3, 2.5, 0.4, "order", (HOSTILE,))


def change():
    policy = cases.policy("table")
    return ise.entropy_change(policy, cases.ragged(24), cases.direction(policy), [1e-4, 1e-3])


def influence(batch=BATCH):
    groups = SimpleNamespace(standard_error=lambda parts: torch.ones(24))
    values = torch.ones(3, 24)
    attribution = SimpleNamespace(
        budget={"total": NUMBER}, by_group=values, groups=groups, unit="nats per token per η"
    )
    scores = ise.Scores(*[torch.zeros(24, 9)] * 2, torch.ones(24, 9) > 0)
    tensor = torch.ones(24, 9)
    return ise.Influence(attribution, None, batch, scores, tensor, None, tensor, "", {}, {})


def checkpoint(folder):
    path = folder / HOSTILE[:100]
    path.mkdir()
    return ise.Checkpoint(path)


LONG = dict.fromkeys(map(str, range(200)), HOSTILE)
TABLE = pd.DataFrame({"text": [HOSTILE] * 24})
OBJECTS = {
    "Audit": lambda _: ise.Audit({"measured": {"spearman_reliability": NUMBER}}, {}, 812),
    "AuditOptions": lambda _: ise.AuditOptions(top=[k / 100 for k in range(1, 100)]),
    "BudgetOptions": lambda _: ise.BudgetOptions(where=f"/{'x' * 300}/"),
    "Checkpoint": checkpoint,
    "CheckpointStep": lambda _: step(ise.CheckpointStep),
    "EntropyBudget": lambda _: ise.EntropyBudget(ise.Target(kind="hold")),
    "EntropyChange": lambda _: change(),
    "EntropyLaw": lambda _: ise.EntropyLaw(*[NUMBER] * 3, 0.9, 0.1, 0.0, NUMBER, (HOSTILE,)),
    "EntropyMeasurements": lambda folder: ise.EntropyMeasurements(settings(folder)),
    "EntropyNoiseScale": lambda _: ise.EntropyNoiseScale(*[NUMBER] * 4),
    "EntropyProbe": lambda _: ise.EntropyProbe([HOSTILE] * 3),
    "Estimate": lambda _: replace(NUMBER, warnings=(HOSTILE,) * 9),
    "EstimatorOptions": lambda _: ise.EstimatorOptions(),
    "Evaluation": lambda _: ise.Evaluation({"pass_at_1": NUMBER, "x": None}, TABLE, "sampled"),
    "EvaluationOptions": lambda _: ise.EvaluationOptions(ks=range(1, 99)),
    "FisherKernel": lambda _: ise.FisherKernel(torch.eye(24), TABLE, TABLE, True, 999, 1e-16),
    "Frontier": lambda _: ise.Frontier(1.0, *[NUMBER] * 12, missing=(HOSTILE,)),
    "GradientOptions": lambda _: ise.GradientOptions(),
    "Influence": lambda _: influence(),
    "InfluenceOptions": lambda _: ise.InfluenceOptions(groups=3),
    "LogprobCheck": lambda _: ise.LogprobCheck(None, HOSTILE, 812, 0.1, 1.01, 0.2, 0.5),
    "NoiseScale": lambda _: ise.NoiseScale(*[NUMBER] * 3, torch.eye(24)),
    "Policy": lambda _: cases.lora_policy("llama"),
    "Precision": lambda _: ise.Precision(),
    "ProbeOptions": lambda _: ise.ProbeOptions(position_pattern=HOSTILE, log_every=3),
    "Prompt": lambda _: ise.Prompt(HOSTILE, HOSTILE, reference=HOSTILE),
    "RecordedStep": lambda _: ise.RecordedStep(BATCH, LONG, None),
    "Rollouts": lambda _: BATCH,
    "SavedArguments": lambda _: ise.SavedArguments(HOSTILE, LONG),
    "Scores": lambda _: ise.Scores(*[torch.zeros(24, 9)] * 2, torch.ones(24, 9) > 0),
    "Setting": lambda _: ise.Setting(HOSTILE, HOSTILE),
    "Shares": lambda _: ise.Shares({"gradient": NUMBER}, {"gradient": torch.ones(24)}),
    "Sketch": lambda _: ise.Sketch(8),
    "SpreadPoint": lambda _: ise.SpreadPoint(torch.ones(24, 9), 1e-3),
    "Step": lambda _: step(),
    "Target": lambda _: ise.Target(kind="cosine", value=0.5, to=0.1, steps=10_000),
}
RESULTS = {name for name in ise.__all__ if name.endswith("Result")} - ABSTRACT
"""What verbs find is made in tests/results, by the verbs."""
NO_NUMBER_WITH_AN_ERROR = {
    *("CheckpointStep", "Step", "Checkpoint", "Policy", "Rollouts", "Scores", "RecordedStep"),
    *("EntropyBudget", "EntropyMeasurements", "EntropyProbe", "FisherKernel", "LogprobCheck"),
    *("Precision", "Prompt", "SavedArguments", "Setting", "Sketch", "SpreadPoint", "Target"),
    *("EntropyChange", *(name for name in OBJECTS if name.endswith("Options"))),
}
"""Those of which `NUMBER` is no part; of an entropy change it is another."""


def test_every_public_type_has_an_object_here():
    types = {name for name in ise.__all__ if isinstance(getattr(ise, name), type)}
    assert types - ABSTRACT - RESULTS == {*OBJECTS}


@pytest.mark.parametrize("name", OBJECTS)
def test_an_object_is_one_short_line(tiny, tmp_path, name):
    folder = tiny if name == "EntropyMeasurements" else tmp_path
    line = repr(OBJECTS[name](folder))
    assert line.startswith((f"<{name}: ", f"{name}("))
    assert len(line) <= LONGEST
    assert line.isprintable(), "a terminal obeys some of it"
    assert " at 0x" not in line
    assert "tensor(" not in line
    assert (INTERVAL in line) == (name not in NO_NUMBER_WITH_AN_ERROR)


def test_an_entropy_change_shows_the_first_order_with_its_interval():
    sweep = change()
    assert str(sweep.first_order) in repr(sweep)
    assert str(sweep.entropy) in repr(sweep)


def test_a_fact_that_does_not_fit_ends_after_its_first_clause_or_is_left_out():
    check = ise.LogprobCheck("shifted", f"One off: {'a' * 200}.", 812, 0.1, 1.01, 0.2, 0.5)
    assert repr(check) == ("<LogprobCheck: shifted; 812 tokens, mean π/π_s 1.0 ± 0.2; One off; …>")
    wide = replace(NUMBER, unit="a" * 300)
    assert repr(ise.NoiseScale(wide, wide, wide, torch.eye(24))) == "<NoiseScale: of 24 units; …>"


def test_a_notebook_shows_eight_responses_with_their_texts_escaped():
    texts = [f"<script>alert({k})</script>\u202e" for k in range(24)]
    batch = BATCH.with_columns(response_texts=texts)
    for instance in (batch, influence(batch)):
        page = instance._repr_html_()
        assert page.count("<tr>") == 1 + 8
        assert "<script" not in page
        assert "&lt;script&gt;alert(7)" in page
        assert "\u202e" not in page


def test_a_sweep_is_a_table_and_a_figure():
    sweep = change()
    assert sweep._repr_html_().count("<tr>") == 1 + len(sweep.points)
    assert all(axes.has_data() for axes in sweep.plot().axes)


def public_callables():
    """Names and objects: what is called, its public methods too; results have the keys of files."""
    parts = {name: getattr(ise, name) for name in {*ise.__all__} - RESULTS}
    parts |= {name: getattr(oracle, name) for name in oracle.__all__} | controls.NAMED_CONTROLS
    for name, public in parts.items():
        if callable(public):
            yield name, public
        if isinstance(public, type):
            for method, function in vars(public).items():
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


def test_prompts_and_responses_have_these_names_in_every_public_signature():
    others = {"completions", "queries", "sequences", "texts"}
    signatures = {name: inspect.signature(public) for name, public in public_callables()}
    assert len(signatures) > 90
    assert {name for name, found in signatures.items() if others & {*found.parameters}} == set()


def test_per_is_token_or_sequence_in_every_public_signature():
    signatures = {name: inspect.signature(public) for name, public in public_callables()}
    assert {name for name, found in signatures.items() if "functional" in found.parameters} == set()
    choices = {
        name: get_type_hints(public)["per"]
        for name, public in public_callables()
        if "per" in signatures[name].parameters
    }
    assert {"entropy", "EntropyChange", "BudgetOptions", "ExactPolicy.entropy"} < {*choices}
    assert {*choices.values()} == {Literal["token", "sequence"]}


@pytest.mark.parametrize(
    "choose",
    [
        ise.EstimatorOptions,
        ise.InfluenceOptions,
        ise.ProbeOptions,
        ise.BudgetOptions,
        controls.NAMED_CONTROLS["bonus"],
        lambda per: ise.entropy(cases.policy("table"), cases.ragged(4), per=per),
        lambda per: ise.surprisal_entropy(cases.policy("table"), cases.ragged(4), per=per),
        lambda per: ise.entropy_gradient(cases.policy("table"), cases.ragged(4), per=per),
        lambda per: cases.exact("table").entropy(per),
    ],
)
def test_a_name_of_files_is_refused_with_that_of_python(choose):
    with pytest.raises(ValueError, match="per_sequence") as refusal:
        choose(per="per_sequence")
    assert 'neither "token" nor "sequence": write per="sequence".' in str(refusal.value)
