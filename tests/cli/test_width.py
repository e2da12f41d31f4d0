"""Tables at every width: columns are left out, and no number is cut."""

import io

import pytest
from rich.console import Console

from isentrope import Estimate
from isentrope.checks import Finding
from isentrope.cli.console import Results, fitting, print_table, show
from isentrope.nouns.columns import Column
from isentrope.results.answers.blocks import Table
from isentrope.run.evaluation_folder import EvaluatedRow, EvaluationResult, RewardCounts
from isentrope.verbs.tables import printed_evaluation, printed_findings
from tests.reports.made_up import (
    audit,
    estimate,
    head,
    influence,
    kernel,
    loaded,
    measure,
    noise,
    sweep_row,
    tables,
)

NAME = "checkpoint-120000"
TINY = -5.294e-05


def showing(printed):
    """A printer of what a verb prints."""
    return lambda console, *content: show(console, printed(*content))


def answer(results):
    """What is printed of results."""
    return type(results[0]).printed(results)


def swept(folder):
    how, (result, _) = studied(folder)
    return how, [result]


def studied(folder):
    row = sweep_row(1.25e-05, TINY, "resample", delta_h_ci_low=-5.5e-5)
    row |= {"delta_h_ci_high": -5.1e-5, "resampled": estimate(TINY, 3e-6)}
    content = measure(NAME, sweep=[row, row], pathwise=None)
    content["batches"]["B_E"] = 1024
    content["checks"]["rounding_floor"]["log_weight"] = 1e-12
    content["entropy"]["per_sequence"] = content["entropy"]["per_token"]
    result, _ = loaded(folder, content)
    return showing(answer), [result, result]


def attributed(folder):
    sequences, tokens = tables(4, 2, ("7", "\n", "five", "<|endoftext|>"))
    tokens = tokens.assign(advantage=-0.123456, delta_h=TINY, delta_h_se=3e-6, delta_j=TINY)
    content = influence(NAME) | {"how": "one pass", "groups": 8, "measured_on": "E"}
    content["classes"] = {"tokens": classes("unlikely, punished, high entropy")}
    return showing(answer), [loaded(folder, content, sequences=sequences, tokens=tokens)[0]]


def classes(name):
    changes = ("delta_h", "share_h", "fall", "delta_j", "share_j")
    part = {"members": 123456.0, "weight": 0.1} | {x: estimate(TINY, 3e-6) for x in changes}
    thresholds = {"s of unlikely": -1.2345, "H of high entropy": 0.98765}
    criterion = {"selected": part, "random_share": 0.02, "random_spread": 0.001}
    content = {"parts": {name: part}, "thresholds": thresholds, "criterion": {"0.02": criterion}}
    return content | {"gradient": estimate(TINY), "baseline": estimate(TINY)}


def kernels(folder):
    sizes = {c: estimate(TINY) for c in ("mean", "spread", "mean_cosine", "rms_cosine")}
    structure = {"same prompt, same length": {"entries": 123456} | sizes}
    truncation = {c: estimate(TINY) for c in ("total", "ratio", "pearson", "spearman")}
    blocks = {"UU": {"rows": 24, "columns": 24, "structure": structure}}
    pairs = {"pairs": 123456, "fraction": 0.123456, "per_pair": estimate(TINY)}
    pairs["falls_as"] = "1/B - 1/n"
    cluster = {"members": 123456, "reward": TINY, "weight": TINY, "delta_h": estimate(TINY)}
    blocks["FU"] = blocks["UU"] | {
        "pair_classes": {"same_prompt": pairs | {"contribution": estimate(TINY)}},
        "predictions": {"rank 20": truncation},
        "clusters": {"count": 1, "labels": [0], "order": [0], "cophenetic_correlation": 0.5}
        | {"prompt_agreement": estimate(0.5), "parts": [cluster]},
    }
    truncations = {"diagonal of each prompt": truncation}
    content = kernel(NAME) | {"blocks": blocks, "truncations": truncations}
    return showing(answer), [loaded(folder, content)[0]]


def noises(folder):
    scales = {"b_simple_of_the_gradient": estimate(123456.0, unit="prompt groups per update")}
    content = noise(NAME) | {"preconditioned": scales}
    return showing(answer), [loaded(folder, content)[0]]


def audited(folder):
    content = audit(NAME) | {"reliability": {}}
    names = ("pearson", "spearman", "sign_agreement", "overlap@0.0002", "overlap@0.02")
    for of in ("tokens", "sequences"):
        rows = {"covariance_of_the_surprisal": {name: estimate(TINY) for name in names}}
        content[of] = {"items": 4096, "proxies": rows}
    return showing(answer), [loaded(folder, content)[0]]


def evaluated(_):
    names = ("pass_at_1", "pass_at_64", "reward", "format", "response_length", "truncated")
    names += ("entropy_per_sequence", "entropy_per_token", "forking_entropy")
    found = Estimate(12345.6, 0.02, 12345.5, 12345.7, 1319, "", "")
    row = EvaluatedRow(
        "temperature 1.0", 1319, 1, dict.fromkeys(names, found), RewardCounts((0.0, 1.0), (1,))
    )
    result = EvaluationResult(
        schema="made up",
        checkpoint=NAME,
        path=NAME,
        step=120000,
        dataset="x",
        split="test",
        temperature=1.0,
        max_new_tokens=8,
        rows=(row,),
    )
    return showing(printed_evaluation), [result]


def tried(folder):
    part = {"delta_h": estimate(TINY), "delta_j": estimate(TINY)}
    gains = {k: estimate(TINY) for k in ("gained_delta_h", "gained_delta_j", "over_random_delta_h")}
    entry = {"control": "influence_clip", "strength": 0.00123, "did": {"touched": 0.123456}}
    entry |= {"step": gains | part, "gradient": gains | part, "predicted": None}
    content = head("try", NAME) | {"vanilla": {"step": part, "gradient": part}, "eta": 1e-3}
    content |= {"tried": {"influence_clip": entry}}
    return showing(answer), [loaded(folder, content)[0]]


def found(_):
    path = "/a/path/" + "without/a/space/" * 8
    finding = Finding("optimizer state", True, f"read from {path}", "")
    return showing(lambda findings: printed_findings(findings, details=True)), {NAME: [finding]}


PRINTED = (swept, studied, attributed, kernels, noises, audited, evaluated, tried, found)


def printed(case, folder, width):
    how, *content = case(folder)
    console = Results(file=io.StringIO(), width=width)
    how(console, *content)
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("case", PRINTED, ids=lambda case: case.__name__)
def test_no_table_is_cut(case, width, tmp_path):
    lines = printed(case, tmp_path, width).splitlines()
    assert not [line for line in lines if "…" in line]
    assert any("─" in line for line in lines)


@pytest.mark.parametrize("case", PRINTED[:-1], ids=lambda case: case.__name__)
def test_a_wide_terminal_has_every_column(case, tmp_path):
    assert "not shown" not in printed(case, tmp_path, 300)


def test_at_80_columns_the_change_stands_whole_with_its_interval(tmp_path):
    said = printed(swept, tmp_path, 80)
    assert "(-5.3 ± 0.3)e-05" in said
    assert "[-5.5e-05, -5.1e-05]" in said
    assert "  not shown    " in said


def table(*ranks):
    columns = [Column(f"c{k}", lambda _: "12345678", rank) for k, rank in enumerate(ranks)]
    return Table("a title that is wider", [None], columns)


@pytest.mark.parametrize(
    ("width", "kept"), [(80, "c0 c1 c2 c3"), (32, "c0 c1 c3"), (24, "c0 c3"), (3, "c0 c3")]
)
def test_the_highest_rank_is_left_out_first_and_rank_0_never(width, kept):
    some = fitting(narrow(width), table(0, 1, 2, 0))
    assert " ".join(column.title for column in some) == kept


def narrow(width):
    return Console(file=io.StringIO(), width=width)


def test_a_console_too_narrow_for_a_number_breaks_it_and_loses_no_digit():
    console = narrow(8)
    print_table(console, table(0))
    digits = [c for line in console.file.getvalue().splitlines() for c in line if c.isdigit()]
    assert "".join(digits).endswith("12345678")
