import json
from pathlib import Path

import pytest
import torch
import yaml
from safetensors.torch import load_file, save_file

import isentrope
from isentrope.config.io import load_config
from tests.command_line import call
from tests.tiny_checkpoint import PROMPTS, copied, settings


@pytest.fixture
def config(tiny, tmp_path):
    """A configuration file, with sections changed as asked."""

    def write(**sections):
        path = tmp_path / "config.yaml"
        path.write_text(yaml.safe_dump(settings(tiny, **sections)))
        return path

    return write


@pytest.fixture
def broken(tiny, tmp_path):
    """A checkpoint of its own, to be broken, and its configuration file."""
    folder = copied(tiny, tmp_path / "own")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(settings(folder)))
    return folder, path


def refused(config, tmp_path, *arguments):
    """What `measure` said on standard error as it refused; nothing must have been written."""
    result = call("measure", config, "--out", tmp_path / "run", *arguments, status=1)
    assert "Traceback" not in result.output
    assert not (tmp_path / "run").exists()
    (sentence,) = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    return sentence


def test_a_repeated_command_prints_what_it_has_and_makes_nothing_anew(config, tmp_path):
    command = ("measure", config(estimator={"order": 0}), "--out", tmp_path / "run")
    first = call(*command)
    (results,) = (tmp_path / "run").rglob("results.json")
    written = results.stat().st_mtime_ns
    again = call(*command, "--details", status=0)
    assert again.stdout.startswith(first.stdout.partition("step_4:")[0])
    assert results.stat().st_mtime_ns == written


def test_a_configuration_is_read_once_and_its_warning_is_said_once(config, monkeypatch):
    paths = []
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda path: paths.append(path) or read_bytes(path))
    file = config(precision={"allow_tf32": False, "matmul_precision": "high"})
    done = call("config", "validate", file, status=0)
    assert paths.count(file) == 1
    assert done.stderr.count("products keep float32") == 1


def test_results_of_another_setting_are_not_written_over(config, tmp_path):
    command = ("measure", config(estimator={"order": 0}), "--out", tmp_path / "run")
    assert call(*command).exit_code == 0
    again = call(*command, "--set", "batch_config.seed=5", status=1)
    assert "batch_config.seed" in again.stderr


def test_debug_shows_where_an_error_was_raised(config, tmp_path):
    path = config(output={"log_level": "DEBUG"}, batch_config={"E_split": "test", "B_E": 10**6})
    path.write_text(path.read_text().replace("prompts.jsonl", "absent.jsonl"))
    result = call("measure", path)
    assert "require_files" in result.stderr


def test_version_and_help():
    assert call("--version").stdout == f"isentrope {isentrope.__version__}\n"
    assert {"measure", "config"} <= set(call("--help").stdout.split())


def test_config_show_prints_every_key_and_can_be_used(tmp_path):
    shown = call("config", "show", "--set", "batch_config.B_E=99").stdout
    (tmp_path / "all.yaml").write_text(shown)
    assert load_config(tmp_path / "all.yaml").batch_config.B_E == 99
    assert "# Size of E" in shown


def test_config_validate_says_what_would_be_measured(config):
    result = call("config", "validate", config())
    assert (result.exit_code, "it measures step_4" in result.stdout) == (0, True)


def test_config_validate_refuses_what_measure_would(config):
    result = call("config", "validate", config(batch_config={"B_EE": 3}), status=1)
    assert "nearest valid key is 'batch_config.B_E'" in result.stderr


# ------------------------------------------------------------------ bad input


@pytest.mark.parametrize(
    ("section", "key", "value", "said"),
    [
        ("estimator", "eta_lst", [1e-3], "nearest valid key is 'estimator.eta_list'"),
        ("checkpoint", "checkpoint_path", "absent", "no checkpoint folder absent"),
        ("checkpoint", "checkpoint_path", "absent/step_*", "No checkpoint folder matches"),
        ("checkpoint", "optimizer_path", "absent.pt", "no optimizer state at absent.pt"),
        ("checkpoint", "device_map", "cuda:7", "no CUDA device"),
        ("batch_config", "B_E", 0, "batch_config.B_E"),
        ("batch_config", "dataset_path", "absent.jsonl", "batch_config.dataset_path"),
        ("batch_config", "E_file", "absent.parquet", "batch_config.E_file"),
        ("batch_config", "B_E", 500, "is left for U"),
        ("sampling", "max_new_tokens", 40, "no room for a prompt in the model's 32 positions"),
        ("sampling", "top_k", 50, "sample from another policy"),
    ],
)
def test_bad_settings_are_refused_in_a_sentence(config, tmp_path, section, key, value, said):
    assert said in refused(config(**{section: {key: value}}), tmp_path)


def test_a_prompt_that_no_response_solves_ends_at_the_redraw_limit(config, tmp_path):
    rows = [{"prompt": p, "reference": "never"} for p in PROMPTS]
    (tmp_path / "hard.jsonl").write_text("\n".join(map(json.dumps, rows)))
    hard = {"dataset_path": str(tmp_path / "hard.jsonl"), "redraw_limit": 2}
    said = refused(config(batch_config=hard), tmp_path)
    assert "After 2 redraws only 0 of 3" in said


def test_responses_in_E_and_U_alike_are_refused(config, tmp_path):
    rows = [{"prompt": PROMPTS[0], "response": str(i), "reward": i} for i in range(2)]
    (tmp_path / "both.jsonl").write_text("\n".join(map(json.dumps, rows)))
    both = dict.fromkeys(("E_file", "U_file"), str(tmp_path / "both.jsonl"))
    assert "1 prompts are in both E and U" in refused(config(batch_config=both), tmp_path)


def test_a_checkpoint_without_optimizer_state_is_refused(broken, tmp_path):
    folder, path = broken
    (folder / "step_4" / "optimizer.pt").unlink()
    assert "no optimizer state" in refused(path, tmp_path)


def test_a_pickle_that_is_not_tensors_is_refused_and_not_run(broken, tmp_path):
    folder, path = broken
    torch.save(Trap(tmp_path / "sprung"), folder / "step_4" / "optimizer.pt")
    assert "tensors and plain values" in refused(path, tmp_path)
    assert not (tmp_path / "sprung").exists()


def test_an_adapter_of_another_shape_is_refused(broken, tmp_path):
    folder, path = broken
    adapter = folder / "step_4" / "adapter_model.safetensors"
    tensors = {name: x[..., :1].contiguous() for name, x in load_file(adapter).items()}
    save_file(tensors, adapter, {"format": "pt"})
    assert "size mismatch" in refused(path, tmp_path)


def test_a_rate_so_large_that_weights_collapse_is_a_value_and_not_a_crash(config, tmp_path):
    path = config(
        estimator={"eta_list": [0.3, 1e6], "order": 1},
        batch_config={"B_E": 40, "allow_overlap": True},
    )
    result = call("measure", path, "--out", tmp_path / "run", status=0)
    assert "resample" in result.stdout


class Trap:
    """Unpickling this would make a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")
