"""A package of an extra that is missing is named with the extra that installs it."""

import re
import subprocess
import sys
import tomllib

import pytest

from isentrope.cli.commands import COMMANDS
from tests.docs.pages import ROOT

WITHOUT = """
import sys
sys.modules["{package}"] = None
sys.argv[1:] = {arguments}
from isentrope.cli.main import app
app()
"""


@pytest.mark.parametrize("package", ["bitsandbytes", "datasets", "gguf", "tensorboard", "trl"])
def test_an_import_that_fails_is_named_with_an_extra_that_has_the_package(package):
    error = ModuleNotFoundError(f"No module named {package!r}", name=package)
    sentence = COMMANDS[-1].sentence_of(error)
    assert f" needs {package}, which is not installed: pip install " in sentence
    extra = re.search(r"'isentrope\[(\w+)\]'\.$", sentence)[1]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    requirements = project["optional-dependencies"][extra]
    assert package in {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}


@pytest.mark.parametrize("verb", [verb.name for verb in COMMANDS if verb.packages])
def test_without_trl_a_verb_that_trains_names_the_extra_and_begins_nothing(verb, tmp_path):
    arguments = {"demo": [], "sft": ["configs/sft_toy.yaml"], "train": ["configs/train_toy.yaml"]}
    command = [verb, *arguments[verb], "--out", str(tmp_path / "run")]
    code = WITHOUT.format(package="trl", arguments=command)
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 1
    assert ended.stderr == (
        f"Error: isentrope {verb} needs trl, which is not installed: "
        "pip install 'isentrope[train]'.\n"
    )
    assert not (tmp_path / "run").exists()
