"""Results of every verb: written, read back, and refused where a file is not what it should be."""

import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace

import pandas as pd
import pytest

from isentrope import Estimate, InfluenceResult, MeasureResult, Result, load_result
from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.nouns import tables as nouns_tables
from isentrope.results import tables as result_tables
from isentrope.results.result import ResultsError
from isentrope.system.errors import FileError
from isentrope.verbs.loop import run_verb
from tests.reports.made_up import influence, tables, write, write_evaluation
from tests.tiny_checkpoint import as_made_elsewhere, settings

ABSENT = object()
"""In place of a value: its key is removed."""

WITHOUT_FIGURE = ("noise", "variance", "entropies")
"""Verbs whose results the report shows without a figure."""

SMALL = (
    "batch_config.allow_overlap=true",
    "batch_config.B_U=4",
    "analysis.share_responses=2",
    "analysis.draws=10",
    "trial.controls=[clip_cov]",
    "trial.size=8",
    "estimator.eta_list=[1e-3, 0.3]",
    "estimator.resample_collapsed=true",
)


@pytest.fixture(scope="module")
def folders(tiny, tmp_path_factory):
    """The folder of each verb's result on the tiny checkpoint."""
    made = {}
    for verb in MEASURING:
        where = tmp_path_factory.mktemp(verb)
        config = load_config(settings(tiny), [*SMALL, f"output.directory={where}"])
        run = run_verb(MEASURING[verb], config)
        (made[verb],) = run.measurements.values()
    return made


@pytest.fixture
def changed(folders, tmp_path):
    """A copy of the result of `measure`, without manifest, with one value replaced at a path."""

    def change(*path, to=ABSENT):
        folder = tmp_path / "changed"
        as_made_elsewhere(shutil.copytree(folders["measure"], folder))
        content = json.loads((folder / "results.json").read_text())
        place = content
        for key in path[:-1]:
            place = place[key]
        if to is ABSENT:
            del place[path[-1]]
        else:
            place[path[-1]] = to
        (folder / "results.json").write_text(json.dumps(content))
        return folder

    return change


@pytest.mark.parametrize("verb", MEASURING)
def test_what_is_loaded_and_saved_is_the_same_file(folders, tmp_path, verb):
    loaded = Result.load(folders[verb])
    loaded.save(tmp_path)
    written = [folder / "results.json" for folder in (tmp_path, folders[verb])]
    one, other = (json.loads(path.read_text()) for path in written)
    assert one == other
    assert loaded.tables
    for name, table in loaded.tables.items():
        pd.testing.assert_frame_equal(pd.read_parquet(tmp_path / f"{name}.parquet"), table)
    again = Result.load(tmp_path)
    assert type(again) is type(loaded)
    assert again.to_dict() == loaded.to_dict()
    assert list(again.tables) == list(loaded.tables)


@pytest.mark.parametrize("verb", MEASURING)
def test_a_prompt_shows_sentences_in_one_line_and_a_notebook_all_and_a_table(folders, verb):
    result = Result.load(folders[verb])
    sentences = result.sentences()
    line = repr(result)
    assert line.startswith(f"<{type(result).__name__}: of step_4; ")
    assert len(line) <= 200
    assert line.isprintable()
    first, *_ = sentences
    assert re.split("[:;] ", first.text.replace("\u00a0", " "))[0] in line
    page = result._repr_html_()
    assert (page.count("<p>"), page.count("<table>")) == (len(sentences), 1)


def test_a_folder_of_results_is_refused_by_the_name_of_one(folders):
    result = folders["measure"]
    with pytest.raises(ResultsError) as refused:
        load_result(result.parent)
    assert f"give one of them, such as {result.parent}" in str(refused.value)


def test_the_folder_of_an_evaluation_is_sent_to_show(tmp_path):
    place = write_evaluation(tmp_path / "evaluated", tmp_path)
    with pytest.raises(ResultsError) as refused:
        load_result(place)
    assert f"isentrope show {place} " in str(refused.value)


def test_equal_responses_are_named_together_and_each_of_them_moves_entropy(tmp_path):
    sequences, tokens = tables(3, 2, ("7", "+", "5", "<eos>"))
    named = {}
    for kind, extra in {"tokens": {"tokens": tokens}, "sequences": {}}.items():
        place = write(
            tmp_path / kind, "influence", "step_8", influence(), sequences=sequences, **extra
        )
        named[kind] = load_result(place).sentences()[0].text
    assert re.search(r"“[^”]+” \(each of the responses \d, \d\)", named["tokens"])
    assert re.search(r"each of the responses \d, \d, “[^”]+”, ", named["sequences"])


def test_a_check_that_files_do_not_decide_is_not_counted_as_one_that_failed(folders):
    result = Result.load(folders["measure"])
    step = replace(result.step, matched_by="order", order_confirmed=None)
    (words,) = (s.text for s in replace(result, step=step).sentences() if "passed" in s.text)
    assert words.startswith("4 of 4 checks passed; these files cannot decide")
    assert "optimizer state" in words


def test_only_the_rate_of_the_optimizer_is_called_the_training_rate(folders):
    result = Result.load(folders["measure"])
    rate = result.rate
    trained = replace(result, step=replace(result.step, learning_rate=rate))
    chosen = replace(result, step=replace(result.step, learning_rate=rate / 3))
    for measured, right, wrong in (
        (trained, "training rate", "chosen rate"),
        (chosen, "chosen rate", "training rate"),
    ):
        words = [sentence.text for sentence in measured.sentences()]
        words += [text.get_text() for axes in measured.plot().axes for text in axes.texts]
        assert any(right in text for text in words)
        assert not any(wrong in text for text in words)


def test_a_line_that_cannot_hold_a_sentence_keeps_its_number_and_interval(folders):
    result = Result.load(folders["measure"])
    wide = replace(result.at_rate().change, ci_low=-1.0, ci_high=1.0)
    doubtful = replace(result, sweep=(replace(result.at_rate(), change=wide),))
    sentence = doubtful.sentences()[0].text.replace("\u00a0", " ")
    assert sentence not in repr(doubtful)
    assert "[−1, 1] nats per token" in repr(doubtful)


@pytest.mark.parametrize("verb", MEASURING)
@pytest.mark.parametrize("in_memory", [False, True])
def test_a_result_draws_the_figure_of_its_panel_or_names_the_verbs_that_have_one(
    folders, verb, in_memory
):
    result = Result.load(folders[verb])
    if in_memory and verb != "kernel":  # whose matrices are held by what saves them
        result = replace(result, tables=dict(result.tables))
    if verb in WITHOUT_FIGURE:
        with pytest.raises(LookupError) as refused:
            result.plot()
        assert "measure, influence, audit, kernel and try have one" in str(refused.value)
    else:
        assert result.plot().axes[0].has_data()


@pytest.mark.parametrize("verb", MEASURING)
def test_a_result_gives_its_tables_by_name_and_that_of_its_verb_without_one(folders, verb):
    result = Result.load(folders[verb])
    for name, table in result.tables.items():
        pd.testing.assert_frame_equal(result.to_frame(name), table)
    assert len(result.to_frame())
    with pytest.raises(LookupError) as refused:
        result.to_frame("nothing")
    assert all(name in str(refused.value) for name in ("'nothing'", *result.tables))


def test_texts_of_responses_command_neither_a_notebook_nor_a_terminal(folders):
    result = Result.load(folders["influence"])
    tokens = result.tables["tokens"].assign(text="<b>&\x1b\u202e")
    hostile = replace(result, tables={**result.tables, "tokens": tokens})
    page = hostile._repr_html_()
    assert "&lt;b&gt;&amp;" in page
    assert "<b>" not in page
    assert not {"\x1b", "\u202e"} & {*page, *repr(hostile)}


READERS = """
import os, pathlib, sys
import pandas, torch, transformers  # once for both, in place of twice
import isentrope as ise

first = os.fork()
if first:
    os.waitpid(first, 0)
read = ise.Result.load if first else ise.load_result
print(*(read(pathlib.Path(folder)).verb for folder in sys.argv[1:]))
"""


def test_a_process_that_ran_no_verb_reads_the_results_of_all(folders):
    command = [sys.executable, "-c", READERS, *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True)
    verbs = [line.split() for line in done.stdout.splitlines()]
    assert verbs == [[*folders], [*folders]], done.stderr[-2000:]


@pytest.mark.parametrize("verb", MEASURING)
def test_a_table_whose_columns_changed_is_refused_without_a_manifest(folders, tmp_path, verb):
    folder = as_made_elsewhere(shutil.copytree(folders[verb], tmp_path / "changed"))
    result = Result.load(folder)
    for name in result.tables:
        path = folder / f"{name}.parquet"
        whole = pd.read_parquet(path)
        for column in whole:
            changes = {
                "renamed": whole.rename(columns={column: f"{column}_"}),
                "retyped": whole.assign(**{column: [False] * len(whole)}),
                "dropped": whole.drop(columns=column),
            }
            if whole[column].dtype == bool:
                changes["retyped"] = whole.astype({column: int})
            schema = nouns_tables.table_schema(result_tables.ROWS[name])
            required = column in schema.columns and column not in schema.optional
            if not required:
                del changes["dropped"]
            if schema.others and not required:  # a control names its numbers itself
                del changes["renamed"]
            for table in changes.values():
                table.to_parquet(path)
                with pytest.raises(FileError, match=rf"{name}\.parquet .*'{column}_?'"):
                    result.tables[name]
        whole.to_parquet(path)
        pd.testing.assert_frame_equal(result.tables[name], whole)


@pytest.mark.parametrize("verb", MEASURING)
def test_the_file_has_every_key_that_was_found_and_no_other(folders, verb):
    content = json.loads((folders[verb] / "results.json").read_text())
    assert content["schema"] == f"isentrope/{verb}/1"
    assert Result.load(folders[verb]).to_dict() == content


PARTS = ("step", "gradient")
FORMER = {
    "measure": {
        "delta_h": "deltaH_true",
        "first_order": "deltaH_approx",
        "second_order": "deltaH_second",
    },
    "influence": {"delta_h": "deltaH", "delta_j": "deltaJ"},
    "try": {"delta_h": "deltaH", "delta_j": "deltaJ"},
}
"""Names of today, and those that files of the former version have."""


def renamed_in(verb, content):
    """The rows of a results.json whose numbers were renamed."""
    if verb == "measure":
        return content["sweep"]
    if verb == "try":
        tried = [
            entry[part] for entry in content["tried"].values() for part in entry if part in PARTS
        ]
        return [*content["vanilla"].values(), *tried]
    return []


def former_name(verb, key):
    for new, old in FORMER[verb].items():
        key = key.replace(new, old)
    return key


@pytest.mark.parametrize("verb", ["measure", "try"])
def test_the_file_has_former_names_as_aliases(folders, verb):
    content = json.loads((folders[verb] / "results.json").read_text())
    for row in renamed_in(verb, content):
        renamed = {key for key in row if any(new in key for new in FORMER[verb])}
        assert {"delta_h"} < renamed
        assert {former_name(verb, key) for key in renamed} == {
            key for key in row if "delta" in key and key not in renamed
        }
        for key in renamed:
            assert row[former_name(verb, key)] == row[key]


@pytest.mark.parametrize("verb", FORMER)
def test_a_result_of_the_former_version_is_read_as_one_of_today(folders, tmp_path, verb):
    old = tmp_path / "old"
    as_made_elsewhere(shutil.copytree(folders[verb], old))
    content = json.loads((old / "results.json").read_text())
    for row in renamed_in(verb, content):
        for key in [key for key in row if former_name(verb, key) != key]:
            del row[key]
    (old / "results.json").write_text(json.dumps(content))
    today = Result.load(folders[verb])
    for name, table in today.tables.items():
        before = table.rename(columns=lambda key: former_name(verb, key))
        assert name == "influences" or any("deltaH" in key for key in before)
        before.to_parquet(old / f"{name}.parquet")
    result = Result.load(old)
    assert result.to_dict() == today.to_dict()
    for name, table in today.tables.items():
        pd.testing.assert_frame_equal(result.tables[name], table)


def test_numbers_are_estimates_and_tables_are_read_when_asked_for(folders):
    result = MeasureResult.load(folders["measure"])
    content = json.loads((folders["measure"] / "results.json").read_text())
    first = content["first_order"]
    assert result.first_order == Estimate(**first | {"warnings": tuple(first["warnings"])})
    assert result.sweep[1].best.method == "resampled"
    table = pd.read_parquet(folders["measure"] / "sweep.parquet")
    pd.testing.assert_frame_equal(result.tables["sweep"], table)
    assert "tokens" not in result.tables
    with pytest.raises(KeyError):
        result.tables["tokens"]


def test_null_is_nan_in_an_estimate_and_none_where_nothing_was_asked_for(changed):
    result = MeasureResult.load(changed("linear_range", "ci_high", to=None))
    assert math.isnan(result.linear_range.ci_high)
    assert math.isnan(result.sweep[1].change.ci_low)
    assert result.first_order.khat is None


@pytest.mark.parametrize(
    ("path", "to", "said"),
    [
        (("first_order", "se"), ABSENT, r"first_order\.se is missing"),
        (("first_order", "n"), "12", r"first_order\.n is wrong"),
        (("first_order", "warnings"), 1.5, r"first_order\.warnings is wrong"),
        (("first_order", "warnings"), None, r"first_order\.warnings is wrong"),
        (("sweep", 0, "eta"), "1e-3", r"sweep\.0\.eta is wrong"),
        (("sweep", 0, "delta_h"), "1e-3", r"sweep\.0\.delta_h is wrong"),
        (("reward", "sweep", 0, "delta_j_ci_low"), ABSENT, r"sweep\.0\.delta_j_ci_low is missing"),
        (("reward", "sweep", 1, "first_order"), ABSENT, r"sweep\.1\.first_order is missing"),
        (("sweep", 1, "method"), 1, r"sweep\.1\.method is wrong"),
        (("sweep",), {"0": {}}, "sweep is wrong"),
        (("budget", "momentum_se"), ABSENT, r"budget\.momentum_se is missing"),
        (("budget", "decay"), [1.0], r"budget\.decay is wrong"),
        (("checks",), ABSENT, "checks is missing"),
        (("schema",), "isentrope/measure/9", "isentrope/measure/9"),
        (("schema",), ABSENT, "its schema is 'None'"),
    ],
)
def test_a_file_that_is_not_a_result_is_refused_by_file_and_key(changed, path, to, said):
    folder = changed(*path, to=to)
    with pytest.raises(ResultsError, match=said) as refused:
        Result.load(folder)
    assert str(folder / "results.json") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cut_file_an_absent_one_and_another_verb_are_refused(folders, tmp_path):
    with pytest.raises(ResultsError, match=r"no file .*results\.json"):
        Result.load(tmp_path)
    (tmp_path / "results.json").write_text('{"schema": "isentrope/meas')
    with pytest.raises(ResultsError, match="cannot be read"):
        Result.load(tmp_path)
    with pytest.raises(ResultsError, match="its schema is 'isentrope/measure/1'"):
        InfluenceResult.load(folders["measure"])
