"""A package of an extra that is missing is named with the extra that installs it."""

import re
import subprocess
import sys
import tomllib

import pytest

from isentrope.cli.commands import COMMANDS
from isentrope.commands.measure import MeasureCommand
from isentrope.system.extras import EXTRAS
from tests.docs.pages import ROOT

WITHOUT = """
import sys
sys.modules["{package}"] = None
sys.argv[1:] = {arguments}
from isentrope.cli.main import app
app()
"""


def test_each_package_is_of_the_extra_that_is_named():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = {
        extra: {re.split(r"[^\w-]", requirement)[0] for requirement in requirements}
        for extra, requirements in project["optional-dependencies"].items()
    }
    assert all(package in extras[extra] for package, extra in EXTRAS.items())


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


def test_an_import_that_fails_later_is_named_in_the_same_words():
    error = ModuleNotFoundError("No module named 'datasets'", name="datasets")
    assert MeasureCommand.sentence_of(error) == (
        "isentrope measure needs datasets, which is not installed: pip install 'isentrope[gsm8k]'."
    )
