"""The momentum by past update, on the checkpoints of a tiny run."""

import shutil

import pytest

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.system.files import MANIFEST
from isentrope.verbs.train import train
from studies.past_updates import past_lines, unrollings
from tests.training import runs

STEPS = 5


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A run of five steps with a checkpoint after each."""
    sections = {"training": {"steps": STEPS, "save_every": 1}, "entropy_probe": {"every": 9}}
    content = runs.settings(tmp_path_factory.mktemp("run"), **sections)
    return train(load_config(content, (), TrainConfig))


@pytest.fixture
def unrolled(made, tmp_path):
    """What is found at a checkpoint of a copy of the run, without some of its files."""

    def found(name=f"step_{STEPS}", without=(), steps=9, copy="out"):
        copied = tmp_path / copy / "states"
        shutil.copytree(made / "training_state", copied)
        shutil.copytree(copied / f"step_{STEPS}", copied / "last")
        for path in without:
            target = copied / path
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            (copied / path.split("/")[0] / MANIFEST).unlink(missing_ok=True)
        content = {
            "checkpoint": {"checkpoint_path": str(copied / name), "verify": not without},
            "batch_config": {
                "dataset_name": "prompts",
                "dataset_path": str(made.parent / "prompts.jsonl"),
                **{"B_E": 12, "B_U": 2, "G": 8, "allow_overlap": True},
            },
            "sampling": {"max_new_tokens": 1},
            "analysis": {"overlap": "independent", "tokens": False},
        }
        (one,) = unrollings(load_config(content), tmp_path / copy / "run", steps)
        return one

    return found


def sizes(found, of="delta_h"):
    past = found.past
    parts = [*past.steps, past.not_attributed, *([past.before] if past.before else [])]
    return [getattr(part, of).value for part in parts]


def test_the_parts_sum_to_the_momentum_and_nothing_but_rounding_is_left(unrolled):
    found = unrolled()
    past = found.past
    assert [step.step for step in past.steps] == [4, 3, 2, 1, 0]
    weights = [0.9, 0.81, 0.729, 0.6561, 0.59049]
    assert [step.weight for step in past.steps] == pytest.approx(weights)
    assert past.missing == ()
    assert past.before.delta_h.value == 0  # a run that begins has no moments
    whole = {"delta_h": found.influence.entropy, "delta_j": found.influence.reward}
    for of, attribution in whole.items():
        values = sizes(found, of)
        assert sum(values) == pytest.approx(attribution.budget["momentum"].value, rel=1e-9)
        rest = getattr(past.not_attributed, of).value
        assert abs(rest) < 1e-4 * sum(map(abs, values))  # moments are stored in float32
    assert not any("recorded" in sentence for sentence in found.notes)
    assert "step_4" in next(past_lines(past))


def test_sequences_of_a_past_update_sum_to_it(unrolled):
    found = unrolled(steps=2)
    assert [step.step for step in found.past.steps] == [4, 3]
    for step in found.past.steps:
        rows = found.table[found.table["step"] == step.step]
        assert len(rows) == step.sequences
        assert rows["delta_h"].sum() == pytest.approx(step.delta_h.value)
        assert set(rows["back"]) == {step.back}
    assert not found.table["delta_h_se"].isna().any()


@pytest.mark.slow
def test_what_is_not_recorded_is_one_number_and_a_sentence(unrolled):
    whole = unrolled()
    pruned = unrolled(without=["step_3/next_update", "step_0/optimizer.pt"], copy="pruned")
    assert pruned.past.missing == (3,)
    assert pruned.past.before is None
    gone = next(step for step in whole.past.steps if step.step == 3)
    left = pruned.past.not_attributed.delta_h.value
    assert left == pytest.approx(gone.delta_h.value, rel=1e-3)
    assert any("step_3 are not recorded" in sentence for sentence in pruned.notes)
    assert any("The earliest recorded past step has no optimizer.pt" in x for x in pruned.notes)
    momentum = pruned.influence.entropy.budget["momentum"].value
    assert sum(sizes(pruned)) == pytest.approx(momentum, rel=1e-9)


def test_a_checkpoint_whose_name_has_no_step_is_refused(unrolled):
    with pytest.raises(ValueError, match="has no step"):
        unrolled("last")
