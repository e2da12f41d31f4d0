"""Content that changed between two runs of one command is refused by name; file times are not."""

import json
import os
import shutil

import pytest
from safetensors.torch import load_file, save_file

from isentrope.commands.measure import measure
from isentrope.config.evaluate import EvaluateConfig
from isentrope.config.io import load_config
from isentrope.run.identity import changed_parts
from isentrope.verbs.evaluate import evaluate_checkpoints
from tests.tiny_checkpoint import as_made_elsewhere, copied, edit_json, settings
from tests.verbs import evaluating


def study(folder, *changes):
    quick = ["batch_config.B_E=4", "batch_config.repeats=2", "estimator.order=0"]
    quick += ["estimator.eta_list=[1e-3]", f"output.directory={folder / 'study'}"]
    return measure(load_config(settings(folder), [*quick, *changes])).folder


def evaluation(folder, *changes):
    quick = ["evaluation.n_prompts=2", "evaluation.samples_per_prompt=2"]
    quick += ["evaluation.metrics=[reward]", f"output.directory={folder / 'evaluation'}"]
    config = load_config(evaluating.settings(folder), [*quick, *changes], EvaluateConfig)
    return evaluate_checkpoints(config).folder


VERBS = {"study": study, "evaluation": evaluation}


@pytest.fixture(scope="module")
def done(tiny, tmp_path_factory):
    """A checkpoint beside its finished study and evaluation."""
    folder = copied(tiny, tmp_path_factory.mktemp("stale") / "here")
    for verb in VERBS.values():
        verb(folder)
    return folder


@pytest.fixture
def here(done):
    """The same folder, to be changed: what was changed is put back."""
    kept = shutil.copytree(done, done.parent / "kept")
    yield done
    shutil.rmtree(done)
    kept.rename(done)


def scale(file):
    save_file({n: 1.01 * x for n, x in load_file(file).items()}, file, {"format": "pt"})


def append(file):
    file.write_text(file.read_text() + "\n")


CHANGES = {
    "weights": lambda here: scale(here / "step_4" / "adapter_model.safetensors"),
    "adapter settings": lambda here: edit_json(
        here / "step_4" / "adapter_config.json", lora_alpha=96
    ),
    "base weights": lambda here: scale(here / "base" / "model.safetensors"),
    "base settings": lambda here: edit_json(here / "base" / "config.json", rope_theta=7.0),
    "tokenizer": lambda here: edit_json(here / "step_4" / "tokenizer.json", version="2.0"),
    "contract": lambda here: (here / "step_4" / "contract.json").write_text("{}"),
    "data": lambda here: append(here / "prompts.jsonl"),
    "optimizer": lambda here: append(here / "step_4" / "parameter_names.json"),
}


CASES = [(v, p) for v in VERBS for p in CHANGES if (v, p) != ("evaluation", "optimizer")]


@pytest.mark.parametrize(("verb", "part"), CASES)
def test_changed_content_is_refused_by_name_whatever_its_time(here, verb, part):
    """Its time is that of before, or, of every second part, earlier."""
    before = {path: path.stat() for path in here.rglob("*") if path.is_file()}
    CHANGES[part](here)
    shift = 10**12 * (CASES.index((verb, part)) % 2)
    for path, stat in before.items():
        os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns - shift))
    with pytest.raises(ValueError, match=rf"was made from other {part} "):
        VERBS[verb](here)


@pytest.mark.parametrize("verb", VERBS)
def test_files_that_were_only_touched_or_moved_are_the_same(here, tmp_path, verb):
    for path in here.rglob("*"):
        os.utime(path)
    assert VERBS[verb](here) == here / verb
    shutil.copytree(here / verb, tmp_path / "moved" / verb)
    copied(here, tmp_path / "moved")
    before = {p: p.stat().st_mtime_ns for p in (tmp_path / "moved").rglob("*.json")}
    VERBS[verb](tmp_path / "moved")
    assert {p: p.stat().st_mtime_ns for p in (tmp_path / "moved").rglob("*.json")} == before


@pytest.mark.parametrize(
    ("verb", "seed", "file"),
    [
        ("study", "batch_config.seed", "study/measurements/measure_step_4/config.yaml"),
        ("evaluation", "evaluation.seed", "evaluation/config.yaml"),
    ],
)
def test_results_are_not_taken_for_another_seed(here, verb, seed, file):
    with pytest.raises(ValueError, match=rf"{seed}=\d"):
        VERBS[verb](here, f"{seed}=7")
    text = (here / file).read_text()
    (here / file).write_text(text.replace("  seed: 0\n", "  seed: 7\n").replace("d: 2\n", "d: 7\n"))
    words = "was changed after it was written" if verb == "study" else "made from other settings"
    with pytest.raises(ValueError, match=words):
        VERBS[verb](here, f"{seed}=7")
    (here / file).unlink()
    with pytest.raises(
        (ValueError, FileNotFoundError), match=r"config\.yaml is missing|made from other settings"
    ):
        VERBS[verb](here, f"{seed}=7")


def test_a_base_that_is_not_here_is_compared_by_its_name_alone():
    here, first, second = {"base": "12"}, {"base": "unknown (a/x)"}, {"base": "unknown (b/x)"}
    assert changed_parts(first, here) == changed_parts(here, first) == []
    assert changed_parts(first, second) == ["base"]
    assert changed_parts({}, here) == []


def test_results_without_digests_are_continued_with_a_warning(here, caplog):
    for repeat in ("", "_repeat_1"):
        file = here / "study" / "measurements" / f"measure_step_4{repeat}" / "results.json"
        content = json.loads(file.read_text())
        del content["provenance"]["made_from"]
        file.write_text(json.dumps(content))
        as_made_elsewhere(file.parent)  # older versions wrote no manifest
    study(here)
    assert "holds no digests" in caplog.text
