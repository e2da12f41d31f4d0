"""Checkpoints, settings and repeats in one command: the branches, the table, and going on."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student_t

from isentrope.config.io import ConfigError, load_config
from isentrope.config.train import TrainConfig
from isentrope.sampling.streams import seed_of_repeat
from isentrope.training.prompt_sampler import PromptSampler
from isentrope.verbs.train import train
from studies import branches as verb
from studies.branch_effects import START, effects
from studies.branch_plan import UNCHANGED, BranchStudy, plan_branches, settings_in
from studies.branches import branch_study
from tests.training import runs

SECTIONS = {
    "training": {"steps": 5, "save_every": 2, "prompt_weighting": "uniform"},
    "trainer": {"lr_scheduler_type": "linear"},
    **runs.UNPROBED,
}
SIZES = {"prompts": 8, "samples": 2}
FASTER = "training.learning_rate=2e-2"


@pytest.fixture(scope="module")
def parent(tmp_path_factory):
    """A run of five steps under a schedule with an end, with checkpoints at 2, 4 and 5."""
    return train(
        load_config(runs.settings(tmp_path_factory.mktemp("p"), **SECTIONS), (), TrainConfig)
    )


def asked(parent, folder, *vary, step=2, steps=1, repeats=2, changes=(), **sizes):
    checkpoint = str(parent / "training_state" / f"step_{step}")
    sizes = SIZES | sizes
    return BranchStudy([checkpoint], vary, changes, repeats, steps, **sizes, folder=folder)


def lines(folder):
    return [json.loads(x) for x in (folder / "logs" / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def study(parent, tmp_path_factory):
    """Two repeats of two settings, one step each."""
    folder = tmp_path_factory.mktemp("study")
    return branch_study(asked(parent, folder, FASTER))


def of(study, setting, repeat, step=3):
    folder = study.table.parent / "branches" / "step_2" / setting / f"repeat_{repeat}"
    return folder, folder / "training_state" / f"step_{step}" / "adapter_model.safetensors"


def test_unchanged_is_the_parent_and_a_repeat_is_another_draw(parent, study):
    first, again, faster = (of(study, *x)[0] for x in ((UNCHANGED, 0), (UNCHANGED, 1), (FASTER, 0)))
    assert lines(first) == lines(parent)[:3]
    names = [
        pd.read_parquet(folder / "logs" / "rollouts" / "step_3.parquet")["prompt_key"].tolist()
        for folder in (first, again, faster)
    ]
    assert names[0] != names[1]
    assert names[0] == names[2]  # settings are compared on the same draw
    assert lines(again)[:2] == lines(parent)[:2]
    assert lines(faster)[2]["learning_rate"] == 2 * lines(first)[2]["learning_rate"]
    assert of(study, FASTER, 1)[1].read_bytes() != of(study, UNCHANGED, 1)[1].read_bytes()


def test_the_table_has_every_setting_and_its_differences(study):
    rows = pd.read_csv(study.table)
    keys = set(zip(rows["setting"], rows["quantity"], rows["against"], strict=True))
    quantities = ("entropy_per_token", "reward")
    assert keys == {
        (setting, quantity, against)
        for quantity in quantities
        for setting, against in ((UNCHANGED, START), (FASTER, START), (FASTER, UNCHANGED))
    }
    assert set(rows["n"]) == {2}
    assert rows["ci_low"].notna().all()


def test_what_is_done_is_left_and_what_was_stopped_goes_on(parent, study, tmp_path, monkeypatch):
    folder = tmp_path / "again"
    shutil.copytree(study.table.parent, folder)
    stopped = folder / "branches" / "step_2" / FASTER / "repeat_1"
    shutil.rmtree(stopped / "training_state" / "step_3")  # as a kill in its step leaves it
    shutil.rmtree(folder / "evaluation" / "step_2" / FASTER / "repeat_1_step_3")
    (folder / "branches.csv").unlink()

    def never(*arguments, **options):
        raise AssertionError("a branch that is there was begun again")

    monkeypatch.setattr(verb, "branch", never)
    done = branch_study(asked(parent, folder, FASTER))
    assert done.table.read_bytes() == study.table.read_bytes()
    weights = "training_state/step_3/adapter_model.safetensors"
    assert (stopped / weights).read_bytes() == of(study, FASTER, 1)[1].read_bytes()
    monkeypatch.setattr(verb, "resume", never)
    assert branch_study(asked(parent, folder, FASTER)).effects == done.effects


@pytest.mark.slow
def test_more_steps_and_repeats_are_added_to_what_is_there(parent, study, tmp_path):
    folder = tmp_path / "more"
    shutil.copytree(study.table.parent, folder)
    done = branch_study(asked(parent, folder, steps=2, repeats=3))
    assert {(e.setting, e.estimate.n) for e in done.effects} == {(UNCHANGED, 3)}
    unchanged = folder / "branches" / "step_2" / UNCHANGED
    assert lines(unchanged / "repeat_0") == lines(parent)[:4]  # one step, then another
    assert len(list(unchanged.iterdir())) == 3
    shutil.rmtree(unchanged / "repeat_0" / "training_state" / "step_3")
    with pytest.raises(ValueError, match=r"is at step 4 and has no checkpoint step_3\b"):
        branch_study(asked(parent, folder))


def test_other_settings_in_the_same_folder_are_refused(parent, study, tmp_path):
    folder = study.table.parent
    with pytest.raises(
        ValueError, match=r"training\.redraw_limit=20, and has training\.redraw_limit=3 now"
    ):
        plan_branches(asked(parent, folder, changes=["training.redraw_limit=3"]))
    other = tmp_path / "other"
    shutil.copytree(parent, other)
    contract = other / "training_state" / "step_2" / "contract.json"
    contract.write_text(contract.read_text() + "\n")
    for name in ("manifest.json", "isentrope.json"):
        contract.with_name(name).unlink()
    with pytest.raises(ValueError, match="began at another checkpoint"):
        plan_branches(asked(other, folder, FASTER))
    with pytest.raises(ValueError, match="samples_per_prompt"):
        branch_study(asked(parent, folder, FASTER, samples=3))


BAD = {
    "training.steps=9": "--steps",
    "training.repeat=1": "--repeats",
    "output.directory=x": "--out",
    "training.seed=1": "training.seed cannot change",
    "training.learning_rat=1": "nearest valid key",
    "learning_rate=1": "section.key=value",
    "training.learning_rate=": "section.key=value",
    "training.learning_rate": "section.key=value",
}


@pytest.mark.parametrize("vary", BAD)
def test_a_setting_that_cannot_vary_is_refused_before_any_branch(parent, tmp_path, vary):
    with pytest.raises(ConfigError, match=BAD[vary]):
        branch_study(asked(parent, tmp_path / "new", vary))
    assert not (tmp_path / "new").exists()


def test_lengths_that_do_not_fit_are_refused(parent, tmp_path):
    with pytest.raises(ConfigError, match="choose --steps 3 or fewer"):
        plan_branches(asked(parent, tmp_path, steps=4))
    with pytest.raises(ConfigError, match=r"--steps 1 is not a multiple of trainer\.num_iterat"):
        plan_branches(asked(parent, tmp_path, "trainer.num_iterations=2"))
    with pytest.raises(FileNotFoundError, match="training_state/"):
        plan_branches(asked(parent / "logs", tmp_path))


def test_settings_are_alternatives_and_grids():
    a, b = "training.learning_rate", "training.prompts_per_step"
    assert settings_in([]) == [()]
    assert settings_in([f"{a}=1,2", f"{b}=8"]) == [(), (f"{a}=1",), (f"{a}=2",), (f"{b}=8",)]
    grid = settings_in([f"{a}=1,2 {b}=8,9"])
    assert grid == [(), *((f"{a}={x}", f"{b}={y}") for x in (1, 2) for y in (8, 9))]


def test_the_parents_own_value_is_the_unchanged_setting(parent, tmp_path):
    (start,) = plan_branches(asked(parent, tmp_path, "training.learning_rate=1e-2,0.02", FASTER))
    assert [b.setting for b in start.branches[::2]] == [UNCHANGED, "training.learning_rate=0.02"]


def sums(seed, prompts=30):
    """Responses of a policy by prompt."""
    rng = np.random.default_rng(seed)
    columns = rng.gamma(4, 1, prompts), rng.integers(5, 40, prompts), rng.random(prompts)
    return pd.DataFrame(dict(zip(("entropy", "length", "reward"), columns, strict=True)))


def test_means_and_errors_are_those_of_the_formula():
    start, plain, other = sums(0), [sums(1), sums(2), sums(3)], [sums(4), sums(5), sums(6)]
    found = {
        (e.setting, e.quantity, e.against): e
        for e in effects("step_2", 2, start, {UNCHANGED: plain, "other": other})
    }

    def linear(policy):
        """h and its influence by prompt, by the delta method."""
        A, T = policy.entropy.to_numpy(), policy.length.to_numpy()
        return A.sum() / T.sum(), (A - A.sum() / T.sum() * T) / T.sum()

    changes, influences = zip(
        *(
            (linear(x)[0] - linear(y)[0], linear(x)[1] - linear(y)[1])
            for x, y in zip(other, plain, strict=True)
        ),
        strict=True,
    )
    mine = np.mean(influences, axis=0)
    repeats = np.std(changes, ddof=1) / np.sqrt(3)
    prompts = np.sqrt(30 / 29 * np.sum((mine - mine.mean()) ** 2))
    got = found["other", "entropy_per_token", UNCHANGED]
    assert got.estimate.value == pytest.approx(np.mean(changes))
    assert (got.se_repeats, got.se_prompts) == pytest.approx((repeats, prompts))
    squares = (mine - mine.mean()) ** 2
    freedom = np.sum(squares) ** 2 / np.sum(squares**2) - 1
    half = np.hypot(student_t.ppf(0.975, 2) * repeats, student_t.ppf(0.975, freedom) * prompts)
    assert got.estimate.ci_high - got.estimate.value == pytest.approx(half)
    means = [x.reward.mean() - start.reward.mean() for x in plain]
    assert found[UNCHANGED, "reward", START].estimate.value == pytest.approx(np.mean(means))
    assert (UNCHANGED, "reward", UNCHANGED) not in found


def test_one_repeat_has_no_interval():
    for effect in effects("step_2", 2, sums(0), {UNCHANGED: [sums(1)]}):
        assert np.isnan([effect.estimate.ci_low, effect.estimate.ci_high, effect.se_repeats]).all()
        assert effect.se_prompts > 0


def test_a_repeat_draws_other_prompts_from_the_same_state():
    assert seed_of_repeat(7, 0) == 7
    assert len({seed_of_repeat(7, r) for r in range(50)}) == 50
    keys = [f"{i:02}" for i in range(40)]
    first = PromptSampler(keys, seed=7)
    first.draw(10, 1)
    rest, state = first.draw(10, 2), None
    for draws, same in ((None, True), (seed_of_repeat(7, 1), False)):
        begun = PromptSampler(keys, seed=7)
        begun.draw(10, 1)
        state = begun.state_dict()
        other = PromptSampler(keys, seed=7, draws=draws)
        other.load_state_dict(state)
        assert (other.draw(10, 2) == rest) is same


def test_the_command_prints_a_table_per_checkpoint(parent, study, monkeypatch, capsys):
    arguments = ["branches", str(parent / "training_state" / "step_2"), "--vary", FASTER]
    sizes = ["--repeats", "2", "--steps", "1", "--prompts", "8", "--samples", "2"]
    out = ["--out", str(study.table.parent)]
    monkeypatch.setattr("sys.argv", [*arguments, *sizes, *out])
    verb.main()
    printed = capsys.readouterr().out
    assert "step_2, 1 step on: differences from unchanged, mean of 2" in printed
    assert UNCHANGED in printed
    assert "learning_rate=2e-2" in printed
    assert str(study.table) in printed
