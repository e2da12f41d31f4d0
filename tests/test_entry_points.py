"""Every call that can unpickle, fetch, run or render what somebody else wrote is on one list.

The libraries underneath are watched while verbs run (tests/cli/test_network.py), and every way in
is tried with a hostile file (tests/test_hostile_files.py).
"""

import ast

import pytest

from tests.sources import trees

WATCHED = {
    *("from_pretrained", "from_config", "from_single_file", "load_dataset", "load_from_disk"),
    *("hf_hub_download", "snapshot_download", "try_to_load_from_cache", "get_tokenizer_config"),
    *("urlopen", "urlretrieve", "apply_chat_template", "from_string", "Environment"),
    *("load_file", "safe_open", "ZipFile", "unpack_archive", "Unpickler", "_Unpickler"),
    *("read_table", "read_schema", "read_metadata", "ParquetFile", "read_parquet", "read_csv"),
    *("read_pickle", "spec_from_file_location", "exec_module", "import_module", "__import__"),
    *("exec", "eval", "run_path", "Popen", "system", "check_output", "full_load", "unsafe_load"),
    "safe_load",
    *("Process", "LLM", "all_gather_object", "broadcast_object_list", "fromfile", "memmap"),
    *("dcp_to_torch_save", "load_state_dict_from_url", "load_peft_weights"),
}
OF = {
    "load": {"torch", "pickle", "yaml", "np", "numpy", "dcp", "joblib", "json", "hub", "jit"},
    "loads": {"pickle", "json", "yaml", "marshal"},
    "run": {"subprocess"},
    "train": {"trainer"},
    "get": {"requests", "httpx"},
}
LISTED = {
    "checkpoint/convert/gathered.py": {"AutoModelForCausalLM.from_config"},
    "evaluation/vllm_engine.py": {"LLM"},
    "checkpoint/infer/verl_settings.py": {"yaml.safe_load"},
    "system/inert.py": {"_Unpickler", "zipfile.ZipFile"},
    "system/manifest.py": {"json.loads"},
    "models/adapter.py": {"PeftConfig.from_pretrained", "PeftModel.from_pretrained"},
    "models/base_model.py": {
        *("AutoConfig.from_pretrained", "auto.from_pretrained", "try_to_load_from_cache"),
    },
    "models/checkpoint.py": {
        *("AutoModelForCausalLM.from_config", "get_tokenizer_config", "kind.from_pretrained"),
    },
    "system/processes.py": {"all_gather_object"},
    "system/file_contents.py": {
        *("json.loads", "load_file", "safe_open", "torch.load"),
        *("pq.read_schema", "pq.read_table", "pq.read_metadata"),
    },
    "system/reading.py": {"json.loads"},
    "reports/panel.py": {"Environment"},
    "run/folder.py": {"subprocess.run"},
    "checkpoint/digests.py": {"try_to_load_from_cache"},
    "sampling/chat_template.py": {
        *("tokenizer.apply_chat_template", "context.Process", "json.loads"),
    },
    "sampling/tasks/load.py": {"import_module"},  # which the user names, as a file
    "sampling/tasks/lines.py": {"parquet.read_table", "pd.read_csv"},
    "sampling/tasks/gsm8k.py": {"load_dataset"},
    "config/strict_yaml.py": {"yaml.load"},  # by a loader that makes no objects
    "system/python_file.py": {"runpy.run_path"},
    "system/memory.py": {"psutil.Process"},  # which starts none
    "verbs/train.py": {"trainer.train"},
    "verbs/sft.py": {"trainer.train"},
}
"""A call that is new here needs a hostile file there."""


def entry_points(tree):
    """Calls that are watched, as they are written."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        *owner, name = called.split(".")
        builtin = name in ("exec", "eval") and owner  # model.eval() is not it
        if (name in WATCHED and not builtin) or (owner and owner[-1] in OF.get(name, ())):
            yield called


@pytest.mark.parametrize(
    "line", ["torch.load(f)", "pickle.load(f)", "yaml.load(f)", "exec(x)", "os.system(x)"]
)
def test_the_guard_knows_the_ways_in(line):
    assert list(entry_points(ast.parse(line)))
    assert not list(entry_points(ast.parse("Rollouts.load(f); result.load(f); d.get(x)")))


def test_every_way_in_is_listed():
    own = {"read_table", "read_schema"}  # functions of `reading`
    found = {
        path: calls for path, tree in trees().items() if (calls := set(entry_points(tree)) - own)
    }
    assert found == LISTED
