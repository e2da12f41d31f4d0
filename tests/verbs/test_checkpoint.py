"""A checkpoint in Python gives what the command line gives, by the same road."""

import shutil
import warnings

import pytest
import torch
from typer.testing import CliRunner

import isentrope as ise
from isentrope.cli.main import app
from tests.docs.pages import ROOT, blocks
from tests.tiny_checkpoint import PROMPTS

README = ROOT / "README.md"
SETTINGS = {
    "batch_config": {"G": 4},
    "sampling": {"max_new_tokens": 3},
    "estimator": {"eta_list": [1e-3]},
}
MEASURED = {
    "measure": ("entropy", "first_order", "second_order", "sweep", "budget", "reward", "price"),
    "influence": ("entropy", "reward", "reliability", "classes"),
    "noise": ("gradient", "preconditioned", "entropy"),
    "kernel": ("blocks", "truncations"),
}


def reward(response, reference):
    """1 where the first character is the reference."""
    return float(response[:1] == reference)


def by_command(verb, folder, out):
    words = [verb, folder / "step_4", "--prompts", folder / "prompts.jsonl", "--out", out]
    words += ["--reward", f"{folder / 'rewards.py'}:reward"]
    for setting in ("B_E=32", "B_U=4", "G=4"):
        words += ["--set", f"batch_config.{setting}"]
    for setting in ("sampling.max_new_tokens=3", "estimator.eta_list=[1e-3]"):
        words += ["--set", setting]
    done = CliRunner().invoke(app, [str(word) for word in words])
    assert done.exit_code == 0, done.output
    return ise.load_result(out / "measurements" / f"{verb}_step_4")


@pytest.mark.parametrize("verb", MEASURED)
def test_a_method_gives_the_result_of_the_command(verb, own, tmp_path):
    printed = by_command(verb, own, tmp_path / "run")
    with ise.Checkpoint(own / "step_4") as checkpoint:
        name = f"{own / 'rewards.py'}:reward"
        E, U = checkpoint.draw(own / "prompts.jsonl", name, E=32, U=4, settings=SETTINGS)
        result = getattr(checkpoint, verb)(E, U, SETTINGS)
    assert type(result) is type(printed)
    ours, theirs = result.to_dict(), printed.to_dict()
    assert {key: ours.get(key) for key in MEASURED[verb]} == {
        key: theirs.get(key) for key in MEASURED[verb]
    }
    assert [s.text for s in result.sentences()] == [s.text for s in printed.sentences()]
    if verb != "noise":  # which has no figure
        assert result.plot().axes[0].has_data()


def test_no_library_warns_a_user_who_can_do_nothing_about_it(own, recwarn):
    warnings.simplefilter("always")
    with ise.Checkpoint(own / "step_4") as checkpoint:
        name = f"{own / 'rewards.py'}:reward"
        E, U = checkpoint.draw(own / "prompts.jsonl", name, E=32, U=4, settings=SETTINGS)
        checkpoint.measure(E, U, SETTINGS)
    hidden = (DeprecationWarning, PendingDeprecationWarning)  # by Python itself
    shown = [warning for warning in recwarn if not issubclass(warning.category, hidden)]
    assert [str(warning.message) for warning in shown] == []


def test_lists_and_functions_give_what_files_and_names_give(own):
    checkpoint = ise.Checkpoint(own / "step_4")
    sizes = {"E": 16, "U": 3, "settings": SETTINGS}
    name = f"{own / 'rewards.py'}:reward"
    named = checkpoint.draw(own / "prompts.jsonl", name, **sizes)
    prompts = [
        ise.Prompt(f"mine/{i}", text=text, reference=str(i % 3 + 1))
        for i, text in enumerate(PROMPTS)
    ]
    given = checkpoint.draw(prompts, reward, **sizes)
    for ours, theirs in zip(given, named, strict=True):
        assert [x.tolist() for x in ours.response_ids] == [x.tolist() for x in theirs.response_ids]
        assert torch.equal(ours.rewards, theirs.rewards)
    assert not {*given[0].prompt_keys} & {*given[1].prompt_keys}


def test_the_policy_is_loaded_once_until_it_is_let_go(own, monkeypatch):
    loads = []
    load = ise.Checkpoint.load
    monkeypatch.setattr(ise.Checkpoint, "load", lambda *how: loads.append(1) or load(*how))
    checkpoint = ise.Checkpoint(own / "step_4")
    E, U = checkpoint.draw(own / "prompts.jsonl", reward, E=16, U=3, settings=SETTINGS)
    checkpoint.measure(E, U, SETTINGS)
    assert len(loads) == 1
    checkpoint.close()
    checkpoint.noise(E, checkpoint.draw(own / "prompts.jsonl", reward, U=4, settings=SETTINGS)[1])
    assert len(loads) == 2


def test_a_recorded_batch_needs_neither_prompts_nor_a_reward(recorded):
    checkpoint = ise.Checkpoint(recorded / "step_4")
    E, U = checkpoint.draw(E=32, settings=SETTINGS)
    assert (len(E), E.n_prompts, E.rewards) == (32, 4, None)
    assert U.token_weights is not None
    result = checkpoint.measure(E, U)
    assert (result.step.objective, result.reward) == ("recorded", None)
    assert sum("prompts that made the step" in sentence for sentence in result.warnings) == 1
    with pytest.raises(ValueError):  # noqa: PT011  U is no draw that is independent of U
        checkpoint.measure(U, U)
    others, same = checkpoint.draw(PROMPTS[8:], E=16, settings=SETTINGS)
    assert (len(others), same.fingerprint) == (16, U.fingerprint)
    assert checkpoint.measure(others, U, SETTINGS).first_order is not None


def test_the_lines_of_readme_run(own, monkeypatch, capsys):
    folder = own.parent / "runs" / "mine" / "checkpoint-200"
    shutil.copytree(own / "step_4", folder)
    (folder / "trainer_state.json").write_text('{"max_new_tokens": 3, "group_size": 4}')
    monkeypatch.chdir(own.parent)
    (lines,) = (text for text in blocks(README, "python") if ".draw(" in text)
    assert len(lines.split("\n\n", 1)[1].splitlines()) == 5
    prompts = [ise.Prompt(str(i), text=x, reference=str(i % 3 + 1)) for i, x in enumerate(PROMPTS)]
    names = {"prompts": prompts, "reward": reward}
    exec(lines, names)
    assert capsys.readouterr().out.startswith("One step from step_200 at the training rate")
    assert isinstance(names["who"], ise.InfluenceResult)


def test_what_is_missing_is_one_sentence(own):
    checkpoint = ise.Checkpoint(own / "step_4")
    for arguments in ([], [PROMPTS], [None, reward], [PROMPTS, []]):
        with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
            checkpoint.draw(*arguments)
        assert "give" in str(refusal.value)

    def by_turns(completions):
        return [1.0, 0.0] * (len(completions) // 2)

    E, U = checkpoint.draw(PROMPTS, by_turns, E=8, U=2, settings=SETTINGS)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        checkpoint.measure(E, E.with_columns(rewards=None))
    assert "rewards" in str(refusal.value)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        checkpoint.noise(E, U.select(range(4)))
    assert "needs 4 of them or more" in str(refusal.value)


def test_what_is_held_is_said_before_the_policy_is_loaded(own, monkeypatch):
    checkpoint = ise.Checkpoint(own / "step_4")
    E, U = checkpoint.draw(own / "prompts.jsonl", reward, E=16, U=3, settings=SETTINGS)
    checkpoint.close()
    monkeypatch.setattr("isentrope.verbs.before_work.memory_of", lambda _: 1)
    monkeypatch.setattr(ise.Checkpoint, "load", lambda *_: pytest.fail("loaded"))
    for verb in ("measure", "influence", "kernel"):
        with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
            getattr(checkpoint, verb)(E, U, SETTINGS)
        assert "does not fit: it holds" in str(refusal.value)


def test_settings_that_are_no_sections_are_refused_by_the_form_that_they_have(own):
    checkpoint = ise.Checkpoint(own / "step_4")
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        checkpoint.draw(own / "prompts.jsonl", reward, settings={"estimator.single_eta": 1e-4})
    assert "(estimator: {single_eta: …})" in str(refusal.value)
    with pytest.raises(ValueError) as refusal:  # noqa: PT011  the sentence says which
        checkpoint.draw(own / "prompts.jsonl", reward, settings={"checkpoint": 3})
    assert "checkpoint: should be a valid dictionary" in str(refusal.value)
