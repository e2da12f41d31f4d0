"""A page with every panel: its sections, its files, what can be read, and axes with units."""

import ast
import csv
import html
import io
import json
import re
import urllib.parse
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.text import Text
from safetensors.numpy import save_file

from isentrope.reports import drawing, page
from isentrope.reports.panels import curves
from isentrope.reports.report import write_report
from tests.axis_labels import lacks_unit, told_by_hue, unlabelled
from tests.reports import made_up
from tests.reports.made_up import UNIT
from tests.reports.test_compare import classes, positions
from tests.reports.test_trade_off import rewarded

ENDS = ("", "_se")
LOGGED = (*curves.TRAINING_LOGS, *curves.CONTROL_LOGS)
TABLES = {"tokens", "checks", "provenance"}
"""Panels without a figure."""


def keys():
    """The keys of panels: those that stand in their calls, and those of tables of panels."""
    trees = [ast.parse(path.read_text()) for path in Path(curves.__file__).parent.glob("*.py")]
    calls = [n for tree in trees for n in ast.walk(tree) if isinstance(n, ast.Call)]
    made = [call for call in calls if isinstance(call.func, ast.Name) and call.func.id == "Panel"]
    texts = {call.args[1].value for call in made if isinstance(call.args[1], ast.Constant)}
    tables = {logged.key for logged in LOGGED} | {study[0] for study in curves.STUDIES}
    return texts | tables | {"classes", "groups", "kernel", "audit", "audit_overlap", "pass_at_k"}


def frontier():
    """What any step of one length could do, with the edge known."""
    reaches = ("reward_reach", "entropy_reach")
    changes = ("centre_reward", "centre_entropy", "reward", "entropy", "best", "best_at_step")
    ratios = ("cosine", "lost", "reward_for_a_nat", "reached", "noise")
    per_rate = f"{made_up.UNIT} per η"
    estimates = {key: made_up.estimate(0.5, unit=per_rate) for key in reaches + changes}
    estimates |= {key: made_up.estimate(0.5, unit="") for key in ratios}
    return estimates | {"length": 1.0, "missing": []}


def write_step(run, name):
    """Results of every verb that draw every panel of a checkpoint."""
    sequences, tokens = made_up.tables(4, 2, ["7", "<eos>"])
    of = classes((3, 997)) | {"sequences_by_group": classes((1, 1))["tokens"]}
    measured = made_up.measure(name, reward=rewarded(), price=positions(0.12), frontier=frontier())
    made_up.write(run, "measure", name, measured)
    influence = made_up.influence(name, classes=of)
    made_up.write(run, "influence", name, influence, sequences=sequences, tokens=tokens)
    made_up.write(run, "audit", name, made_up.audit(name))
    both = made_up.kernel(name)
    both["blocks"] |= made_up.moved(name)["blocks"]
    folder = made_up.write(run, "kernel", name, both)
    draw = np.random.default_rng(0)
    for block, shape in (("UU", (8, 8)), ("EU", (6, 8))):
        (folder / block).mkdir()
        sequences[["prompt", "key", "length", "reward", "advantage"]].assign(
            identity="1 2"
        ).to_parquet(folder / block / "rows.parquet")
        sides = {"row_diagonal": np.ones(shape[0]), "column_diagonal": np.ones(shape[1])}
        matrix = np.eye(*shape) + draw.normal(size=shape) / 9
        save_file({"matrix": matrix, **sides}, folder / block / "kernel.safetensors")


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A report that has every panel, and the figures, by key."""
    folder = tmp_path_factory.mktemp("work")
    run = folder / "runs" / "one"
    for name in ("step_8", "step_16"):
        write_step(run, name)
    columns = [column for logged in LOGGED for column in logged.drawn]
    columns += ["price/first_order", "price/at_first_token/first_order", "price/reward"]
    lines = [
        {"step": step} | {f"{column}{end}": 0.1 + step / 99 for column in columns for end in ENDS}
        for step in range(1, 40)
    ]
    made_up.write_log(run, lines)
    evaluation = made_up.write_evaluation(folder / "evaluation", run, groups=("easy", "hard"))
    figures = {}
    image = page.image

    def keep(figure, kind, name):
        figures[name] = figure
        return image(figure, kind, name)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(page, "image", keep)
        return write_report(run, evaluations=[evaluation]), figures


@pytest.fixture
def figures(drawn):
    """Every panel that has a figure, by key."""
    return drawn[1]


@pytest.fixture
def whole(drawn):
    """The report, and the text of its page."""
    return drawn[0], drawn[0].page.read_text(encoding="utf-8")


SECTIONS = (
    "change",
    "budget",
    "tokens",
    "plane",
    "kernel",
    "audit",
    "training",
    "control",
    "checks",
    "study",
    "provenance",
)


def test_a_whole_run_has_every_section_in_order(whole):
    assert tuple(re.findall(r'<section id="(\w+)-section"', whole[1])) == SECTIONS
    assert not any("evaluation" in sentence for sentence in whole[0].missing)
    assert not any("left out" in sentence for sentence in whole[0].missing)


def test_the_page_asks_for_nothing_outside_itself(whole):
    page = html.unescape(whole[1])
    assert "default-src 'none'" in page
    assert not re.findall(r'(?:src|href)="(?!#|data:)[^"]*"', page)
    assert not re.findall(r"url\((?!#)[^)]*\)|@import", page)


def test_identifiers_are_used_once_and_every_reference_finds_its_own(whole):
    found = re.findall(r'\sid="([^"]+)"', whole[1])
    assert len(found) == len(set(found))
    references = re.findall(r'xlink:href="#([^"]+)"|url\(#([^)]+)\)', whole[1])
    assert {a or b for a, b in references} <= set(found)


def test_colours_of_figures_are_those_of_the_scheme(whole):
    figures = re.findall(r"<svg.*?</svg>", whole[1], flags=re.DOTALL)
    assert len(figures) > 10
    assert all("var(--ink)" in svg or "var(--muted)" in svg for svg in figures)
    assert not [c for svg in figures for c in re.findall(r"(?:fill|stroke): (#\w+)", svg)]


def test_every_figure_is_a_file_and_its_data_are_beside_it(whole):
    stems = {path.stem for path in whole[0].folder.glob("*.svg")}
    assert {"delta_h", "budget", "kernel", "spectrum", "audit", "plane", "pass_at_k"} <= stems
    for stem in stems:
        assert (whole[0].folder / f"{stem}.png").stat().st_size > 1000
        assert (whole[0].folder / f"{stem}.csv").read_text().count("\n") > 1
        ElementTree.parse(whole[0].folder / f"{stem}.svg")


def values_of(page, key):
    """What can be read at the points of a figure."""
    figure = re.search(rf'<figure id="{key}".*?</figure>', page, flags=re.DOTALL)[0]
    content = re.search(r'class="points">(.*?)</script>', figure, flags=re.DOTALL)
    return json.loads(content[1]) if content else None


def test_every_figure_has_values_to_be_read_with_their_units(whole):
    stems = {path.stem for path in whole[0].folder.glob("*.svg")}
    values = {stem: values_of(whole[1], stem) for stem in stems}
    assert all(x["pictures"] or any(group[3] for group in x["groups"]) for x in values.values())
    before, between, after, points = values["delta_h"]["groups"][0]
    read = [before + across + between + value + after for _, _, across, value in points]
    change = "ΔH −0.0017 [−0.00204,\u00a0−0.00136] nats per token"
    assert f"measured · learning rate η 0.001 · {change}" in read
    assert values["kernel"]["pictures"][0]["hundredths"][0][0] == 100
    assert {point[2] for point in values["budget"]["groups"][0][3]} >= {"momentum", "measured"}


def test_values_are_read_where_their_markers_are_drawn(whole):
    for stem in ("delta_h", "spectrum", "plane_step"):
        svg = (whole[0].folder / f"{stem}.svg").read_text()
        uses = re.findall(r'<use [^>]*x="([\d.]+)" y="([\d.]+)"', svg)
        markers = np.array(uses, dtype=float)
        places = np.array([p[:2] for p in values_of(whole[1], stem)["groups"][0][3]])
        gaps = np.abs(places[:, None] - markers).max(-1).min(1)
        assert gaps.max() <= 1, stem


def test_the_data_link_holds_the_numbers_that_are_drawn(whole):
    link = re.search(r'href="data:text/csv[^,]*,([^"]*)" download="delta_h.csv"', whole[1])
    rows = list(csv.DictReader(io.StringIO(urllib.parse.unquote(link.group(1)))))
    drawn = [(float(row["learning rate η"]), float(row[f"ΔH ({UNIT})"])) for row in rows[:3]]
    assert drawn == [(1e-5, -2e-5), (1e-3, -1.7e-3), (1e-2, 1e-2)]


def test_every_panel_names_command_seeds_and_versions(whole):
    figures = re.findall(r"<figure.*?</figure>", whole[1], flags=re.DOTALL)
    for figure in figures:
        assert "Made by <code>isentrope " in figure
        assert "Seeds: " in figure
        assert re.search(r"<figcaption>.+\.</figcaption>", figure)


@pytest.mark.slow
def test_the_same_run_gives_the_same_bytes(whole):
    before = whole[1]
    run = whole[0].page.parent
    write_report(run, evaluations=[run.parents[1] / "evaluation"])
    assert whole[0].page.read_text(encoding="utf-8") == before


def test_every_panel_is_looked_at(figures):
    assert {key.rstrip("_1") for key in figures} >= keys() - TABLES


def test_every_axis_of_every_panel_has_its_unit(figures):
    assert {key: list(unlabelled(figure)) for key, figure in figures.items()} == {
        key: [] for key in figures
    }


def test_what_a_legend_names_differs_by_more_than_its_hue(figures):
    assert {key: list(told_by_hue(figure)) for key, figure in figures.items()} == {
        key: [] for key in figures
    }


def test_colours_of_falls_and_rises_are_of_changes_of_entropy_alone(figures):
    signs = {drawing.FALL, drawing.RISE}
    coloured = set()
    for figure in figures.values():
        for axes in figure.axes:
            hues = {to_hex(part.get_facecolor()) for part in axes.patches}
            hues |= {to_hex(line.get_color()) for line in axes.lines}
            coloured |= {axes.get_xlabel() + axes.get_ylabel()} if hues & signs else set()
    assert coloured
    assert [label for label in coloured if not re.search(r"ΔH|δH|change of entropy", label)] == []


def test_no_label_of_an_axis_is_cut(figures):
    for key, figure in figures.items():
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
        room = figure.bbox.padded(1)
        labels = [axis.label for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)]
        for label in filter(Text.get_text, labels):
            box = label.get_window_extent(canvas.get_renderer())
            assert room.contains(*box.p0), (key, label.get_text())
            assert room.contains(*box.p1), (key, label.get_text())


@pytest.mark.parametrize("label", ["ΔH", "change of entropy", "δH₁ per η", "eigenvalue of K"])
def test_a_quantity_alone_is_no_unit(label):
    assert lacks_unit(label)
    assert not lacks_unit(f"{label} (nats per token)")


@pytest.mark.parametrize(
    ("config", "column", "unit"),
    [
        ({}, "probe/change", "nats per token"),
        ({"entropy_probe": {"functional": "per_sequence"}}, "probe/change", "nats per sequence"),
        ({"entropy_probe": {"functional": "per_sequence"}}, "entropy", "nats per token"),
        ({"control": {"name": "budget"}}, "control/entropy", "nats per sequence"),
        (
            {"control": {"name": "budget", "options": {"functional": "per_token"}}},
            "control/asked",
            "nats per token",
        ),
        ({"control": {"name": "repo_r"}}, "control/entropy", "nats per token"),
    ],
)
def test_a_column_of_the_log_is_in_the_unit_of_the_run(config, column, unit):
    assert curves.unit_of_log(config, column) == unit
