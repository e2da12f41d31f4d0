import gzip
import json
import os
from functools import cache

import pandas as pd
import pytest
from safetensors.torch import load_file

from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.config.stages import LoggingConfig
from isentrope.system.errors import FileError
from isentrope.system.files import write_bytes
from isentrope.verbs.detailed_log import rotate
from tests.tiny_checkpoint import settings


@pytest.fixture(scope="module")
def logs(tiny, tmp_path_factory):
    """Measure at a level of logging, once for each, and return the log files by their kind."""

    @cache
    def written(order=0, **logging):
        config = settings(
            tiny,
            estimator={"order": order, "eta_list": [1e-3]},
            detailed_logging=logging,
            output={"directory": str(tmp_path_factory.mktemp("logs") / "run")},
        )
        folder = measure(load_config(config)).folder / "logs"
        return {path.name.split(".", 1)[1]: path for path in folder.glob("*")}

    return written


@pytest.mark.parametrize(
    ("level", "kinds"),
    [
        ("minimal", ["log.json"]),
        ("standard", ["log.json"]),
        ("detailed", ["log.json", "sequences.parquet"]),
        ("debug", ["log.json", "sequences.parquet", "tensors.safetensors", "tokens.parquet"]),
    ],
)
def test_each_level_writes_more(logs, level, kinds):
    files = logs(level=level)
    assert sorted(files) == kinds
    parts = {"results"} if level == "minimal" else {"results", "batches", "weights"}
    assert set(json.loads(files["log.json"].read_text())) == parts


def test_tables_add_up_to_the_results(logs):
    files = logs(level="debug")
    results = json.loads(files["log.json"].read_text())["results"]
    sequences, tokens = (pd.read_parquet(files[f"{t}.parquet"]) for t in ("sequences", "tokens"))
    assert len(sequences) == 12 + 3 * 4
    assert len(tokens) == sequences["length"].sum()
    E = sequences[sequences["batch"] == "E"]
    H = results["entropy"]["per_sequence"]["value"]
    assert E["entropy"].mean() == pytest.approx(H, rel=1e-6)
    assert tokens["entropy"].sum() == pytest.approx(sequences["entropy"].sum(), rel=1e-12)
    assert set(sequences["reward"].dropna()) == {0.0, 1.0}


def test_raw_tensors_hold_the_direction_and_its_additive_components(logs):
    tensors = load_file(logs(order=2, log_raw_tensors=True)["tensors.safetensors"])
    name = next(n for n in tensors if n.startswith("direction.")).removeprefix("direction.")
    parts = sum(tensors[f"{kind}.{name}"] for kind in ("momentum", "decay", "gradient"))
    assert (parts - tensors[f"direction.{name}"]).abs().max() < 1e-12
    assert {"E.logprobs", "E.d1_logprobs", "E.d2_entropies"} <= set(tensors)


def test_a_table_can_be_had_without_its_level_and_left_out_of_it(logs):
    assert sorted(logs(level="minimal", log_tokens=True)) == ["log.json", "tokens.parquet"]


def test_a_compressed_log_holds_the_same(logs):
    files = logs(level="detailed", compress=True)
    content = json.loads(gzip.decompress(files["log.json.gz"].read_bytes()))
    assert content["results"]["schema"] == "isentrope/measure/1"
    assert len(pd.read_parquet(files["sequences.parquet"])) == 24


def test_logging_can_be_off(logs):
    assert logs(enabled=False, level="debug") == {}


def test_the_oldest_logs_go_first_with_their_tables_and_nothing_else(tmp_path):
    for age, name in enumerate(("c", "b", "a")):
        for kind in ("log.json", "tokens.parquet"):
            path = tmp_path / f"measure_{name}.{kind}"
            path.write_text("{}")
            os.utime(path, (1000 - age, 1000 - age))
    (tmp_path / "notes.txt").write_text("mine")
    rotate(tmp_path, LoggingConfig(max_files=2))
    left = sorted(path.name.split(".")[0] for path in tmp_path.glob("*.json"))
    assert left == ["measure_b", "measure_c"]
    assert not (tmp_path / "measure_a.tokens.parquet").exists()
    assert (tmp_path / "notes.txt").exists()


def test_a_file_in_place_of_the_logs_is_named_before_any_work_and_costs_nothing(tiny, tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / "logs").touch()
    config = _config(tiny, run)
    with pytest.raises(FileError, match=r"run/logs is a file, not a directory"):
        measure(config)
    assert [path.name for path in run.iterdir()] == ["logs"]
    (run / "logs").unlink()
    assert len(measure(config).results) == 2


def test_results_whose_log_cannot_be_written_are_finished_by_the_same_command(
    tiny, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    config = _config(tiny, run, level="detailed")

    def fail(path, content):
        if list((run / "logs").glob("*.json")) and path.suffix == ".json":
            raise OSError(28, "No space left on device", str(path))
        return write_bytes(path, content)

    with monkeypatch.context() as patch:
        patch.setattr("isentrope.verbs.detailed_log.write_bytes", fail)
        with pytest.raises(OSError, match="No space left"):
            measure(config)
    assert [path.name for path in run.glob("measurements/measure_*")] == ["measure_step_4"]
    assert len(list((run / "logs").iterdir())) == 2  # nothing is left of the other one
    measure(config)
    assert len(list((run / "logs").glob("*.log.json"))) == 2


def test_results_that_do_not_get_their_name_leave_no_log(tiny, tmp_path, monkeypatch):
    run = tmp_path / "run"

    def fail(complete, target):
        raise OSError(5, "Input/output error", str(target))

    with monkeypatch.context() as patch:
        patch.setattr("isentrope.system.files.publish_folder", fail)
        with pytest.raises(OSError, match="Input/output"):
            measure(_config(tiny, run))
    assert not list((run / "logs").iterdir())


def _config(tiny, run, **logging):
    """Two checkpoints to one folder."""
    paths = [str(tiny / name) for name in ("step_4", "checkpoint-8")]
    content = settings(
        tiny,
        checkpoint={"checkpoint_path": paths},
        estimator={"eta_list": [1e-3], "order": 0},
        detailed_logging=logging,
        output={"directory": str(run)},
    )
    return load_config(content)
