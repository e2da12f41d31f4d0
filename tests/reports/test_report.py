import csv
import html
import io
import json
import re
import shutil
import urllib.parse
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest

from isentrope.reports.report import write_report
from tests.reports.made_up import (
    UNIT,
    make_run,
    measure,
    noise,
    sweep_row,
    write,
    write_evaluation,
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    here = tmp_path_factory.mktemp("work") / "runs" / "one"
    made = write_report(
        make_run(here), evaluations=[write_evaluation(here.parents[1] / "eval_runs" / "e", here)]
    )
    return made, made.page.read_text(encoding="utf-8")


SECTIONS = (
    "change",
    "budget",
    "tokens",
    "plane",
    "kernel",
    "audit",
    "training",
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
    write_report(run, evaluations=[run.parents[1] / "eval_runs" / "e"])
    assert whole[0].page.read_text(encoding="utf-8") == before


def test_an_empty_folder_is_refused_with_what_to_do(tmp_path):
    with pytest.raises(ValueError, match=r"training log.*isentrope measure"):
        write_report(tmp_path)
    assert not list(tmp_path.iterdir())
    with pytest.raises(FileNotFoundError, match="not a directory"):
        write_report(tmp_path / "absent")


def test_a_half_finished_run_says_what_is_missing(tmp_path):
    make_run(tmp_path / "r", steps=(8,))
    shutil.rmtree(tmp_path / "r" / "measurements" / "audit_step_8")
    (tmp_path / "r" / "measurements" / ".kernel_step_16.partial").mkdir()
    (tmp_path / "r" / "measurements" / "kernel_step_8" / "results.json").write_text('{"cut')
    with open(tmp_path / "r" / "logs" / "metrics.jsonl", "a") as file:
        file.write('{"step": 21, "rew')
    made = write_report(tmp_path / "r")
    said = " ".join(made.missing)
    for part in ("kernel of step_16 was begun", "cannot be read", "isentrope audit", "1 lines of"):
        assert part in said
    page = made.page.read_text(encoding="utf-8")
    assert '"kernel-section"' not in page
    assert '"change-section"' in page


@pytest.mark.parametrize("keep", ["measure", "influence", "kernel", "noise", "audit", None])
def test_any_part_alone_makes_a_report(tmp_path, keep):
    run = make_run(tmp_path / "r", steps=(8,))
    write(run, "noise", "step_8", noise())
    for path in (run / "measurements").iterdir():
        if keep is None or not path.name.startswith(keep):
            shutil.rmtree(path)
    if keep is not None:
        shutil.rmtree(run / "logs")
    page = write_report(run).page.read_bytes()
    assert len(page) > 10_000
    if keep in ("kernel", None):
        assert write_report(run).page.read_bytes() == page


def test_two_runs_stand_side_by_side_with_the_difference(tmp_path):
    one, two = (make_run(tmp_path / name, steps=(8,)) for name in ("one", "two"))
    for run in (one, two):
        for verb in ("influence", "kernel"):
            shutil.rmtree(run / "measurements" / f"{verb}_step_8")
    shutil.rmtree(two / "measurements" / "audit_step_8")
    made = write_report(one, two)
    page = made.page.read_text(encoding="utf-8")
    assert made.page.name == "report_and_two.html"
    assert {"a_delta_h", "b_delta_h"} <= set(re.findall(r'<figure id="(\w+)"', page))
    both = "−2 [−2.5,\u00a0−1.5] in A and −2 [−2.5,\u00a0−1.5] in B"
    assert f"first order δH₁: {both}; difference 0" in page
    assert made.runs == [f"A is {one}.", f"B is {two}."]
    assert "audit" not in re.findall(r'<section id="(\w+)-section"', page)


def test_of_three_runs_each_is_compared_with_the_first_that_has_the_number(tmp_path):
    runs = [make_run(tmp_path / name, 2, 2, steps=(8,)) for name in ("one", "two", "three")]
    shutil.rmtree(runs[1] / "measurements" / "kernel_step_8")
    for run in runs[1:]:
        shutil.rmtree(run / "measurements" / "audit_step_8")
    shutil.rmtree(runs[0] / "measurements" / "influence_step_8")
    made = write_report(*runs)
    page = made.page.read_text(encoding="utf-8")
    assert made.page.name == "report_and_two_and_three.html"
    assert all(str(run) in page for run in runs)
    figures = set(re.findall(r'<figure id="([abc])_(\w+)"', page))
    labels = {key: {label for label, panel in figures if panel == key} for _, key in figures}
    assert labels["delta_h"] == {"a", "b", "c"}
    assert labels["kernel"] == {"a", "c"}
    assert labels["tokens"] == {"b", "c"}
    assert "audit" not in labels
    ends = re.findall(r"<li>first order δH₁: .*? in A and .*? in ([BC]); difference", page)
    assert ends[:2] == ["B", "C"]
    assert re.search(r"same prompt: .*? in A and .*? in C; ", page)


def test_names_that_are_too_long_for_a_file_are_counted(tmp_path):
    names = ["one", *(letter * 90 for letter in "xyz")]
    runs = [make_run(tmp_path / name, 2, 2, steps=(8,)) for name in names]
    for run in runs:
        shutil.rmtree(run / "measurements")
    assert write_report(*runs).page.name == "report_and_3_others.html"


def test_a_rate_that_was_not_measured_is_said_to_be_missing(tmp_path):
    results = measure(sweep=[sweep_row(1e-5, -2e-5)])
    write(tmp_path, "measure", "step_8", results)
    assert "was not measured" in write_report(tmp_path).claims[0]
