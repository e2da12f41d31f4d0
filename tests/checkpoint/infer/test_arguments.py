"""training_args.bin is read as data: whatever is in it, nothing of it runs."""

import collections
import enum
import os
import pickle
import sys

import pytest
import torch

from isentrope.checkpoint.infer.arguments import read_training_arguments

trl = pytest.importorskip("trl")


class Schedule(enum.Enum):
    """An enum of a library; the test gives it a module that is not there."""

    SLOW = "slow"


class Custom:
    """A configuration of a class that nobody else has."""


class Evil:
    def __init__(self, *call):
        self.call = call

    def __reduce__(self):
        return self.call


def saved(tmp_path, content, **options):
    torch.save(content, tmp_path / "training_args.bin", **options)
    return tmp_path / "training_args.bin"


def grpo(tmp_path, **options):
    return trl.GRPOConfig(
        output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none", **options
    )


def test_every_plain_argument_of_trl_is_read_as_torch_reads_it(tmp_path):
    args = grpo(tmp_path, temperature=0.7, hub_token="secret", lr_scheduler_type="cosine")
    read = read_training_arguments(saved(tmp_path, args))
    assert (read.kind, read.processes) == ("GRPOConfig", 1)
    plain = {
        name: getattr(value, "value", value)
        for name, value in vars(args).items()
        if isinstance(value, (bool, int, float, str, list, dict, enum.Enum, type(None)))
    }
    assert read.fields == {k: v for k, v in plain.items() if k != "hub_token"}
    assert read.fields["lr_scheduler_type"] == "cosine"


@pytest.mark.parametrize(("sequences", "passes", "generations"), [(8, 1, 8), (4, 6, 8), (16, 3, 4)])
def test_the_prompts_of_a_step_are_those_that_trl_draws_for_it(
    tmp_path, sequences, passes, generations
):
    args = grpo(
        tmp_path,
        per_device_train_batch_size=sequences,
        gradient_accumulation_steps=passes,
        num_generations=generations,
    )
    read = read_training_arguments(saved(tmp_path, args))
    assert read.prompts_per_step == args.generation_batch_size // args.num_generations


def test_a_number_in_a_tensor_is_no_missing_argument(tmp_path):
    args = grpo(tmp_path)
    args.beta = torch.tensor(0.5)
    assert read_training_arguments(saved(tmp_path, args)).fields["beta"] == 0.5


def test_classes_that_are_not_installed_are_read_too(tmp_path, monkeypatch):
    args = Custom()
    args.schedule, args.loss_type, args.dtype = Schedule.SLOW, "dapo", torch.bfloat16
    args.extra = {"a": [1, (2.5, None), {3}], "b": collections.OrderedDict(c=True)}
    monkeypatch.setattr(Schedule, "__module__", "transformers.of_another_year")
    monkeypatch.setattr(Custom, "__module__", "my_project")
    monkeypatch.setitem(sys.modules, "transformers.of_another_year", _module(Schedule))
    monkeypatch.setitem(sys.modules, "my_project", _module(Custom))
    path = saved(tmp_path, args)
    monkeypatch.undo()
    read = read_training_arguments(path)
    extra = {"a": [1, [2.5, None], [3]], "b": {"c": True}}
    assert read.fields == {"schedule": "slow", "loss_type": "dapo", "extra": extra}


def _module(kind):
    return type("module", (), {kind.__name__: kind})


@pytest.mark.parametrize(
    "call",
    [
        (os.system, ("touch ran",)),
        (eval, ("open('ran', 'w')",)),
        (exec, ("open('ran', 'w')",)),
        (torch.hub.load, ("a", "b")),
        (pickle.loads, (b"",)),
    ],
    ids=lambda call: call[0].__name__,
)
@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("hidden", [True, False])
def test_a_pickle_that_would_run_code_is_refused_and_does_not_run(
    tmp_path, monkeypatch, call, protocol, hidden
):
    monkeypatch.chdir(tmp_path)
    content = Evil(*call)
    if hidden:
        content = grpo(tmp_path)
        content.output_dir = Evil(*call)
    path = saved(tmp_path, content, pickle_protocol=protocol)
    with pytest.raises(ValueError, match="run code"):
        read_training_arguments(path)
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ([1, 2], "holds a list"),
        ({"weights": torch.zeros(2)}, "holds a dict"),
        (b"torn", "cannot be read"),
    ],
)
def test_other_files_are_refused_in_a_sentence(tmp_path, content, words):
    path = tmp_path / "training_args.bin"
    path.write_bytes(content) if isinstance(content, bytes) else saved(tmp_path, content)
    with pytest.raises(ValueError, match=words):
        read_training_arguments(path)
