"""Responses without a reward: every verb takes them in U, and in E they have no ΔJ."""

import json

import pytest
from typer.testing import CliRunner

from isentrope.cli.main import app
from isentrope.results.verbs import VERBS
from tests.tiny_checkpoint import settings


@pytest.fixture(scope="module")
def folder(tiny, tmp_path_factory):
    """Rewards by which a 3 is unscored, and a configuration that takes them for U."""
    here = tmp_path_factory.mktemp("unscored")
    source = "def f(response, reference):\n"
    source += "    return None if response == '3' else float(response == reference)\n"
    (here / "r.py").write_text(source)
    return here


def run(tiny, folder, out, verb, **data):
    rewarded = {"U_dataset_name": f"{folder / 'r.py'}:f", "seed": 1, "B_U": 4}
    rewarded |= {"U_dataset_path": str(tiny / "prompts.jsonl")} | data
    content = settings(tiny, batch_config=rewarded, analysis={"draws": 10})
    (folder / "config.json").write_text(json.dumps(content))
    options = ["clip_cov"] if verb == "try" else []
    command = [verb, *options, str(folder / "config.json"), "--out", str(out)]
    done = CliRunner().invoke(app, command)
    return done, [json.loads(path.read_text()) for path in out.glob("**/results.json")]


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_takes_an_update_batch_with_unscored_responses(tiny, folder, tmp_path, verb):
    done, results = run(tiny, folder, tmp_path / "out", verb)
    assert done.exit_code == 0, done.output[-2000:]
    U = results[0]["batches"]["U"]
    assert U["unscored"] > 0
    assert 0 <= U["mean_reward"] <= 1


def test_unscored_responses_of_E_leave_the_change_of_entropy_alone(tiny, folder, tmp_path):
    of_E = {"dataset_name": f"{folder / 'r.py'}:f"}
    done, (result,) = run(tiny, folder, tmp_path / "out", "measure", **of_E)
    assert done.exit_code == 0
    assert "reward" not in result
    assert result["sweep"][0]["delta_h"] != 0
    (sentence,) = [x for x in result["warnings"] if "ΔJ" in x]
    assert "has no reward, because no reward function applies to it" in sentence
    done, _ = run(tiny, folder, tmp_path / "parts", "influence", **of_E)
    assert done.exit_code != 0
    assert "analysis.reward=false" in " ".join(done.output.split())
