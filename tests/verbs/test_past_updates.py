"""`influence` with analysis.momentum_steps, on the checkpoints of a tiny run."""

import json
import shutil
from functools import partial

import pandas as pd
import pytest
import torch

from isentrope.config.io import load_config
from isentrope.config.train import TrainConfig
from isentrope.nouns.vectors import norm
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.language_model import Policy
from isentrope.recording import next_update
from isentrope.results.results import InfluenceResult
from isentrope.results.verbs import INFLUENCE
from isentrope.system.files import MANIFEST
from isentrope.update.objective import RECORDED, entropy_weights, token_weights
from isentrope.verbs.loop import run_verb
from isentrope.verbs.train import train
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
    """What influence finds at a checkpoint of a copy of the run, without some of its files."""

    def found(*overrides, step=STEPS, without=(), steps=9, name="out"):
        copied = tmp_path / name / "states"
        shutil.copytree(made / "training_state", copied)
        for path in without:
            target = copied / path
            shutil.rmtree(target) if target.is_dir() else target.unlink()
            (copied / path.split("/")[0] / MANIFEST).unlink(missing_ok=True)
        content = {
            "checkpoint": {"checkpoint_path": str(copied / f"step_{step}"), "verify": not without},
            "batch_config": {
                "dataset_name": "prompts",
                "dataset_path": str(made.parent / "prompts.jsonl"),
                **{"B_E": 12, "B_U": 2, "G": 8, "allow_overlap": True},
            },
            "sampling": {"max_new_tokens": 1},
            "analysis": {"momentum_steps": steps, "overlap": "independent", "tokens": False},
            "output": {"directory": str(tmp_path / name / "run"), "log_level": "WARNING"},
        }
        done = run_verb(INFLUENCE, load_config(content, overrides))
        (folder,) = done.measurements.values()
        return InfluenceResult.load(folder)

    return found


def sizes(result, of="delta_h"):
    past = result.past
    parts = [*past.steps, past.not_attributed, *([past.before] if past.before else [])]
    return [getattr(part, of).value for part in parts]


def test_the_parts_sum_to_the_momentum_and_nothing_but_rounding_is_left(unrolled):
    result = unrolled()
    past = result.past
    assert [step.step for step in past.steps] == [4, 3, 2, 1, 0]
    weights = [0.9, 0.81, 0.729, 0.6561, 0.59049]
    assert [step.weight for step in past.steps] == pytest.approx(weights)
    assert past.missing == ()
    assert past.before.delta_h.value == 0  # a run that begins has no moments
    for of, budget in (("delta_h", result.entropy), ("delta_j", result.reward)):
        values = sizes(result, of)
        assert sum(values) == pytest.approx(budget.momentum.value, rel=1e-9)
        rest = getattr(past.not_attributed, of).value
        assert abs(rest) < 1e-4 * sum(map(abs, values))  # moments are stored in float32
    assert not any("recorded" in sentence for sentence in result.warnings)


def test_sequences_of_a_past_update_sum_to_it(unrolled):
    result = unrolled(steps=2)
    assert [step.step for step in result.past.steps] == [4, 3]
    table = result.tables["momentum"]
    for step in result.past.steps:
        rows = table[table["step"] == step.step]
        assert len(rows) == step.sequences
        assert rows["delta_h"].sum() == pytest.approx(step.delta_h.value)
        assert set(rows["back"]) == {step.back}
    assert not table["delta_h_se"].isna().any()


def test_a_pruned_batch_is_in_one_named_number_and_a_sentence(unrolled):
    whole, pruned = unrolled(), unrolled(without=["step_3/next_update"], name="pruned")
    assert pruned.past.missing == (3,)
    gone = next(step for step in whole.past.steps if step.step == 3)
    left = pruned.past.not_attributed.delta_h.value
    assert left == pytest.approx(gone.delta_h.value, rel=1e-3)
    assert any("step_3 are not recorded" in sentence for sentence in pruned.warnings)
    assert sum(sizes(pruned)) == pytest.approx(pruned.entropy.momentum.value, rel=1e-9)


def test_without_the_state_of_the_earliest_step_a_sentence_says_so(unrolled):
    result = unrolled(without=["step_0/optimizer.pt"])
    assert result.past.before is None
    assert any("The earliest recorded past step has no optimizer.pt" in x for x in result.warnings)
    assert sum(sizes(result)) == pytest.approx(result.entropy.momentum.value, rel=1e-9)


def test_the_clip_of_an_unrecorded_norm_is_of_entropies_too(unrolled, monkeypatch):
    """A recorder that does not know the norm leaves it to the batch, whose loss has both terms."""
    record = next_update.read_next_update

    def with_entropies(checkpoint, *, known):
        batch, update = record(checkpoint)
        weights = [torch.full_like(x, 9.0) for x in batch.token_weights]
        batch = batch.with_columns(entropy_weights=weights)
        policy = Policy.from_checkpoint(checkpoint)
        both = token_weights(batch, RECORDED), entropy_weights(batch, RECORDED)
        size = norm(weighted_gradient(policy, batch, *both)) if known else None
        return batch, update | {"max_grad_norm": 1e-3, "gradient_norm": size}

    found = []
    for known in (True, False):
        reader = partial(with_entropies, known=known)
        monkeypatch.setattr("isentrope.verbs.past_updates.read_next_update", reader)
        result = unrolled(steps=1, name=f"known_{known}")
        found.append(result.past.steps[0].delta_h.value)
    assert found[1] == pytest.approx(found[0], rel=1e-6)


def test_a_record_of_another_step_is_refused(unrolled, made, tmp_path):
    copied = tmp_path / "states"
    shutil.copytree(made / "training_state", copied)
    path = copied / "step_2" / "next_update" / "update.json"
    content = json.loads(path.read_text()) | {"step": 7}
    path.write_text(json.dumps(content))
    (path.parent / MANIFEST).unlink()
    (path.parent / "isentrope.json").unlink()
    config = {
        "checkpoint": {"checkpoint_path": str(copied / "step_3"), "verify": False},
        "batch_config": {"dataset_name": "addition", "B_E": 8, "B_U": 2, "allow_overlap": True},
        "analysis": {"momentum_steps": 1, "overlap": "independent", "tokens": False},
        "output": {"directory": str(tmp_path / "run")},
    }
    config["batch_config"] |= {
        "dataset_name": "prompts",
        "dataset_path": str(made.parent / "prompts.jsonl"),
    }
    with pytest.raises(ValueError, match="records step 7"):
        run_verb(INFLUENCE, load_config(config, ["sampling.max_new_tokens=1"]))


def test_a_checkpoint_whose_name_has_no_step_is_refused(made, tmp_path):
    shutil.copytree(made / "training_state" / "step_5", tmp_path / "last")
    config = {
        "checkpoint": {"checkpoint_path": str(tmp_path / "last")},
        "batch_config": {
            "dataset_name": "prompts",
            "dataset_path": str(made.parent / "prompts.jsonl"),
            **{"B_E": 8, "B_U": 2, "G": 8, "allow_overlap": True},
        },
        "analysis": {"momentum_steps": 1, "overlap": "independent", "tokens": False},
        "output": {"directory": str(tmp_path / "run")},
    }
    with pytest.raises(ValueError, match="has no step"):
        run_verb(INFLUENCE, load_config(config, ["sampling.max_new_tokens=1"]))


def test_the_table_can_be_read_back(unrolled):
    table = unrolled(steps=1).tables["momentum"]
    assert isinstance(table, pd.DataFrame)
    assert {"step", "back", "sequence", "delta_h", "delta_j"} <= set(table.columns)
