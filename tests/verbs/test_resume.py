"""What `train --resume` refuses to go on from."""

import json
import shutil

import pytest
from safetensors.torch import load_file, save_file

from isentrope.config.io import ConfigError
from isentrope.training.divergence import TrainingDivergedError
from isentrope.verbs.train import resume, train
from tests.tiny_checkpoint import as_made_elsewhere, edit_json
from tests.verbs.test_train import MORE, config

FORMAT = {"format": "pt"}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run of two steps, with a checkpoint after each."""
    folder = tmp_path_factory.mktemp("finished")
    train(config(folder))
    return folder


@pytest.fixture
def run(finished, tmp_path):
    return shutil.copytree(finished / "run", tmp_path / "run")


def test_a_folder_that_holds_a_run_is_not_begun_again(finished):
    with pytest.raises(FileExistsError, match="holds a run"):
        train(config(finished))
    with pytest.raises(FileNotFoundError, match="holds no run"):
        resume(finished / "nothing")


@pytest.mark.parametrize(
    "name",
    [
        "optimizer.pt",
        "scheduler.pt",
        "rng_state.pth",
        "trainer_state.json",
        "contract.json",
        "isentrope_state.json",
        "adapter_model.safetensors",
    ],
)
def test_a_checkpoint_without_one_of_its_files_is_refused_by_the_files_name(run, name):
    newest, metrics = run / "training_state" / "step_2", (run / "logs/metrics.jsonl").read_bytes()
    (newest / name).unlink()
    for changes in ([], MORE):
        with pytest.raises(ValueError, match=rf"step_2 .*{name}"):
            resume(run, changes)
        (newest / name).touch()  # and as a file that is empty
    assert (run / "logs/metrics.jsonl").read_bytes() == metrics


def test_an_emptied_step_folder_is_no_checkpoint(run):
    (run / "training_state" / "step_9").mkdir()
    with pytest.raises(ValueError, match="step_9 "):
        resume(run)


def test_a_step_under_another_steps_name_is_refused(run):
    shutil.copytree(run / "training_state" / "step_1", run / "training_state" / "step_6")
    with pytest.raises(ValueError, match=r"step_6 .*step 1 "):
        resume(run)


def test_only_what_the_run_left_is_removed_on_resuming(run):
    places = run / "training_state", run / "logs" / "rollouts"
    own = [".writing", ".removed_1", ".step_3.partial", ".step_3.a1b2.partial"]
    for name in (*own, ".mine", ".step_3"):
        (places[0] / name).mkdir()
    tables = ["step_3.parquet", "step_3.parquet.partial"]
    for name in (*tables, "step_3.parquet.old", "step_1.parquet.bak"):
        (places[1] / name).touch()
    (places[0] / ".DS_Store").touch()
    (places[0] / ".removed_2").symlink_to(run)
    (places[0] / "step_7").touch()
    resume(run, MORE)
    left = {path.name for place in places for path in place.iterdir()}
    assert left >= {".mine", ".step_3", ".DS_Store", ".removed_2", "step_7"}
    assert left >= {"step_3.parquet.old", "step_1.parquet.bak"}
    assert not left & {*own, "step_3.parquet.partial"}


def test_data_that_is_not_there_is_named_and_not_called_other_data(run):
    text = (run / "config.yaml").read_text()
    relative = [line for line in text.splitlines() if "dataset_path" in line]
    (run / "config.yaml").write_text(text.replace(relative[0], "  dataset_path: prompts.jsonl"))
    with pytest.raises(FileNotFoundError, match=r"There is no .*prompts\.jsonl, .*dataset_path"):
        resume(run, MORE)


def test_a_step_under_a_name_that_no_run_gives_is_refused(run):
    (run / "training_state" / "step_2").rename(run / "training_state" / "step_002")
    with pytest.raises(ValueError, match=r"step_002 .*rename it to step_2\b"):
        resume(run, MORE)


EDITS = {
    "training.learning_rate": ("learning_rate: 0.01", "learning_rate: 0.02"),
    "training.seed": ("seed: 0", "seed: 5"),
    "trainer.weight_decay": ("trainer: {}", "trainer: {weight_decay: 0.5}"),
    "trainer.lr_scheduler_type": ("trainer: {}", "trainer: {lr_scheduler_type: linear}"),
    "data.held_out_split": ("held_out_split: test", "held_out_split: train"),
    "entropy_probe.size": ("size: 4", "size: 8"),
    "model.lora_rank": ("lora_rank: 2", "lora_rank: 3"),
}


@pytest.mark.parametrize("key", EDITS)
def test_an_edited_setting_is_refused_by_key_and_nothing_is_written(run, key):
    old, new = EDITS[key]
    text = (run / "config.yaml").read_text()
    assert old in text
    (run / "config.yaml").write_text(text.replace(old, new, 1))
    before = {p: p.read_bytes() for p in run.rglob("*") if p.is_file()}
    for changes in ([], MORE):
        with pytest.raises(ConfigError, match=rf"(no {key}|{key}=\S+), .*{key}="):
            resume(run, changes)
    assert {p: p.read_bytes() for p in run.rglob("*") if p.is_file()} == before


def test_steps_of_a_schedule_with_an_end_cannot_change(tmp_path):
    folder = train(config(tmp_path, trainer={"lr_scheduler_type": "linear"}))
    with pytest.raises(ConfigError, match=r"training\.steps=2, .*lr_scheduler_type=linear"):
        resume(folder, MORE)


def test_data_that_was_edited_in_place_is_refused(finished, run):
    data = finished / "prompts.jsonl"
    text = data.read_text()
    data.write_text(text + "\n")
    with pytest.raises(ConfigError, match="other data"):
        resume(run, MORE)
    data.write_text(text)


def test_another_base_is_not_the_runs(finished, run, tmp_path):
    other = shutil.copytree(finished / "base", tmp_path / "other")
    weights = load_file(other / "model.safetensors")
    save_file({n: x + 1e-3 for n, x in weights.items()}, other / "model.safetensors", FORMAT)
    as_made_elsewhere(other)
    with pytest.raises(ConfigError, match="other base weights"):
        resume(run, [f"model.path={other}", *MORE])


def test_a_setting_that_would_make_another_run_cannot_be_changed(run):
    with pytest.raises(ConfigError, match=r"training\.learning_rate=1 .*another run"):
        resume(run, ["training.learning_rate=1"])


def test_the_same_files_at_another_place_are_the_same_run(finished, run, tmp_path):
    shutil.copytree(finished / "base", tmp_path / "elsewhere")
    moved = f"model.path={tmp_path / 'elsewhere'}"
    resume(run, [moved, *MORE])
    assert "elsewhere" in (run / "config.yaml").read_text()


def test_a_start_from_an_adapter_is_not_a_start_from_its_base(run):
    with pytest.raises(ConfigError, match=r"model\.path="):
        resume(run, [f"model.path={run / 'training_state' / 'step_1'}", *MORE])


# ------------------------------------------------------------------ the log


def test_damaged_and_blank_lines_of_the_log_are_cut_where_no_step_is_lost(run, caplog):
    metrics = run / "logs" / "metrics.jsonl"
    first, second = metrics.read_text().splitlines()
    metrics.write_text(f'{first}\n\n{{"step": 1, "lo\n5\n{second}\n{{"step": 3, "l')
    resume(run, MORE)
    assert [json.loads(line)["step"] for line in metrics.read_text().splitlines()] == [1, 2, 3]
    assert {n for n in (1, 2, 3, 4) if f"Line {n} of {metrics}" in caplog.text} == {3, 4}


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (["{second}"], "has no line of step 1, "),
        (["{first}", '{{"step": 2, "loss": '], r"no line of step 2 \(damaged: line 2\)"),
        ([], "no line of step 1"),
        (["{first}", "{first}", "{second}"], "two lines of step 1"),
        (["{second}", "{first}"], "the line of step 1 after that of step 2"),
    ],
)
def test_a_lost_line_is_refused_by_step_with_a_way_out(run, lines, said):
    metrics = run / "logs" / "metrics.jsonl"
    first, second = metrics.read_text().splitlines()
    damaged = "".join(f"{line.format(first=first, second=second)}\n" for line in lines)
    metrics.write_text(damaged)
    with pytest.raises(ValueError, match=said):
        resume(run, MORE)
    assert metrics.read_text() == damaged


def test_the_way_out_of_a_lost_line_gives_the_same_log(run):
    metrics = run / "logs" / "metrics.jsonl"
    whole = metrics.read_text()
    metrics.write_text(whole.splitlines()[0] + "\n{\n")
    with pytest.raises(ValueError, match="remove the checkpoints from step 2 on"):
        resume(run)
    shutil.rmtree(run / "training_state" / "step_2")
    resume(run)
    assert metrics.read_text() == whole


def test_every_process_of_the_run_needs_its_random_state(run):
    checkpoint = as_made_elsewhere(run / "training_state" / "step_2")
    edit_json(checkpoint / "contract.json", world_size=2)
    with pytest.raises(ValueError, match=r"step_2 .*rng_state_0\.pth"):
        resume(run)


def test_a_run_whose_numbers_overflow_ends_and_keeps_what_was_good(tmp_path, caplog):
    asked = config(tmp_path)
    section = asked.training.model_copy(update={"learning_rate": 1e308})  # more than is read
    with pytest.raises(TrainingDivergedError, match="step 1, "):
        train(asked.model_copy(update={"training": section}))
    assert [p.name for p in (tmp_path / "run" / "training_state").glob("step_*")] == ["step_0"]
    assert "--resume" not in caplog.text
