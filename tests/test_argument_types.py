"""An object of another class than a public function needs is one sentence that names it."""

import inspect

import numpy as np
import pytest
import torch

import isentrope as ise
from tests import cases

WRONG = (None, 3, "step_4", ["a", "b"], {"per": "token"}, torch.nn.Linear(1, 1))
"""What is given in place of an object of this library."""
OF_NUMBERS = {"pass_at_k", "estimate_entropy_change"}
"""Functions of numbers and arrays of any library."""
POLICY = cases.policy("table")
BATCH = cases.ragged(8)
RIGHT = {
    "self": None,
    "policy": POLICY,
    "rollouts": BATCH,
    "E": BATCH,
    "U": BATCH,
    "step": object.__new__(ise.Step),
    "direction": {},
    "etas": [1e-3],
    "optimizer": {},
    "task": ise.load_task("addition"),
    "measured": torch.ones(2),
    "mask": torch.ones(2),
    "prompt_index": torch.ones(2),
    "per_sequence": torch.ones(2),
    "proxies": {},
    "rule": "grpo",
    "name": "addition",
    "prompts": ["1+1="],
    "folder": "nowhere",
    "entropy": [1.0],
    "reward": [1.0],
}
"""One object of the right class for each argument; the call never comes so far as to use it."""
NOUNS = {"policy", "rollouts", "E", "U", "step", "direction", "estimator", "gradients", "options"}
"""Arguments that are objects of one class."""


def calls():
    public = [getattr(ise, name) for name in ise.__all__ if name not in OF_NUMBERS]
    functions = [function for function in public if inspect.isfunction(function)]
    verbs = ("step", "measure", "influence", "noise", "kernel")
    functions += [getattr(ise.Checkpoint, name) for name in verbs]
    functions += [ise.Step.require_batch, ise.EntropyProbe, ise.EntropyBudget]
    return [
        pytest.param(function, name, id=f"{function.__qualname__}-{name}")
        for function in functions
        for name, parameter in inspect.signature(function).parameters.items()
        if name in NOUNS and parameter.kind is not parameter.VAR_KEYWORD
    ]


@pytest.mark.parametrize(("function", "name"), calls())
def test_a_wrong_object_is_refused_by_the_name_of_its_argument(function, name):
    parameters = inspect.signature(function).parameters
    needed = {key: RIGHT.get(key) for key, p in parameters.items() if p.default is p.empty}
    for wrong in WRONG:
        if wrong is parameters[name].default or (name == "direction" and isinstance(wrong, dict)):
            continue
        with pytest.raises(TypeError) as refusal:
            function(**needed | {name: wrong})
        assert str(refusal.value).startswith(f"{function.__name__}: {name} is ")
        assert "has to be" in str(refusal.value)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: ise.Policy("folder"), "Policy: model is an object of class str"),
        (lambda: ise.Checkpoint(None), "Checkpoint: path is None"),
        (lambda: ise.Checkpoint(".", name=3), "Checkpoint: name is an object of class int"),
        (lambda: ise.Checkpoint.draw(None, 3), "draw: prompts is an object of class int"),
        (lambda: ise.Checkpoint.draw(None, reward=3), "draw: reward is an object of class int"),
        (lambda: ise.Checkpoint.draw(None, settings="E"), "draw: settings is an object of class"),
        (lambda: ise.EntropyProbe("1+1="), "EntropyProbe: prompts is an object of class str"),
    ],
)
def test_what_a_user_makes_by_hand_names_the_argument_that_is_wrong(call, words):
    with pytest.raises(TypeError) as refusal:
        call()
    assert words in str(refusal.value)
    assert "has to be" in str(refusal.value)


def test_a_checkpoint_in_place_of_a_policy_is_told_what_makes_one():
    with pytest.raises(TypeError) as refusal:
        ise.entropy(object.__new__(ise.Checkpoint), BATCH)
    assert "object of class Checkpoint" in str(refusal.value)
    assert "Checkpoint.policy" in str(refusal.value)


def test_numbers_and_sequences_of_other_libraries_are_taken():
    direction = cases.direction(POLICY)
    rates = torch.tensor([1e-3])
    assert len(ise.entropy_change(POLICY, BATCH, direction, rates, order=1).points) == 1


def test_arrays_of_another_library_do_for_tensors():
    changes = np.random.default_rng(0).normal(size=(32, 4))
    mask = np.ones((32, 4), dtype=bool)
    audit = ise.audit(changes, mask, np.arange(32), {"itself": changes})
    assert audit["itself"]["spearman"].value == pytest.approx(1)
