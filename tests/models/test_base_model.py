import json

import pytest

from isentrope.checkpoint.convert.gathered import described_model
from isentrope.models.base_model import adapter_base, causal_lm
from isentrope.models.checkpoint import load_tokenizer, meta_model
from isentrope.system.errors import FileError
from tests import cases


@pytest.fixture
def folders(tmp_path, monkeypatch):
    """runs/own/base and an adapter folder beside it, seen from another folder."""
    cases.model("qwen2").save_pretrained(tmp_path / "runs" / "own" / "base")
    adapter = tmp_path / "runs" / "own" / "step_4"
    adapter.mkdir()
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path, adapter


def named_base(folder, named, *chosen, **options):
    """The base of an adapter that names one."""
    settings = {"peft_type": "LORA", "base_model_name_or_path": named}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return adapter_base(folder, *chosen, **options)


@pytest.mark.parametrize(
    "named", ["runs/own/base", "own/base", "./base", "../base", "/absent/base", "~/absent"]
)
def test_a_path_that_is_not_there_is_named_and_never_sought_in_a_hub(folders, named):
    with pytest.raises(FileNotFoundError, match=r"checkpoint\.base_model") as error:
        named_base(folders[1], named)
    assert f", {named}, does not exist" in str(error.value)


def test_a_base_here_or_given_or_of_the_hub_is_taken(folders, monkeypatch):
    root, adapter = folders
    chosen = named_base(adapter, "runs/own/base", root / "runs/own/base")
    assert chosen.endswith("own/base")
    assert named_base(adapter, "org/model", allow_hub=True) == "org/model"
    assert named_base(adapter, "gpt2", allow_hub=True) == "gpt2"
    assert named_base(adapter, None, "runs/model") == "runs/model"  # said to be a hub's
    monkeypatch.chdir(root)
    assert named_base(adapter, "runs/own/base") == "runs/own/base"
    with pytest.raises(FileNotFoundError, match="base model"):
        named_base(adapter, None)


@pytest.mark.parametrize("named", ["org/model", "gpt2"])
def test_a_base_of_the_hub_that_only_the_adapter_names_needs_leave(folders, named):
    with pytest.raises(FileNotFoundError, match=rf"{named}, .*checkpoint\.allow_hub"):
        named_base(folders[1], named)
    assert named_base(folders[1], named, named) == named  # the user's own word


def test_the_base_in_the_folder_of_a_run_is_found_by_its_contract(folders):
    root, _ = folders
    step = root / "runs" / "own" / "training_state" / "step_4"
    step.mkdir(parents=True)
    for base, found in {"base": True, "../own": False, "absent": False}.items():
        (step / "contract.json").write_text(json.dumps({"base_model": base}))
        if found:
            assert named_base(step, "/absent") == str(root / "runs" / "own" / base)
        else:
            with pytest.raises(FileNotFoundError, match="/absent"):
                named_base(step, "/absent")


def test_a_name_of_the_hub_fails_at_once_without_one(folders, monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"'org/model' .*base_model"):
        causal_lm("org/model")


def test_the_code_of_a_checkpoint_is_never_run(tmp_path, monkeypatch):
    cases.model("qwen2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    code = {"AutoConfig": "mine.MyConfig", "AutoModelForCausalLM": "mine.MyModel"}
    changed = config | {"model_type": "mine", "auto_map": code}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    (tmp_path / "mine.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match="has code of its own"):
        causal_lm(tmp_path)


@pytest.mark.parametrize("key", ["attn_implementation", "_attn_implementation"])
def test_a_kernel_of_the_hub_is_never_fetched(tmp_path, monkeypatch, key):
    cases.model("qwen2").save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: "kernels-community/mine"}))
    fetched = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention", lambda *a, **_: fetched.append(a)
    )
    for read in (causal_lm, described_model, meta_model):
        with pytest.raises(FileError, match="names the kernel 'kernels-community/mine'"):
            read(tmp_path)
    assert not fetched


def test_a_tokenizers_code_is_never_run(tmp_path, monkeypatch):
    settings = {"auto_map": {"AutoTokenizer": ["mine.MyTokenizer", None]}}
    settings["tokenizer_class"] = "MyTokenizer"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "mine.py").write_text("raise SystemExit('this code was run')")
    monkeypatch.setattr("builtins.input", lambda *_: "y")
    with pytest.raises(ValueError, match=r"tokenizer .* code of its own"):
        load_tokenizer(tmp_path)
