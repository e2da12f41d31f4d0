"""Whatever fails in a reading, the run goes on, ends where it would have, and saves."""

import types

import pytest
import torch
from safetensors.torch import load_file
from transformers import TrainerCallback

import isentrope as ise
from isentrope import ProbeOptions
from isentrope.probe import callback
from tests.probe import following
from tests.probe.test_trl_defaults import trained

EVENTS = [name for name in dir(TrainerCallback) if name.startswith("on_")]
PARTS = sorted(
    name
    for name, x in vars(callback).items()
    if getattr(x, "__module__", "").startswith("isentrope.")
    and not isinstance(x, types.ModuleType)
    and name not in ("EntropyProbe", "SavedFields", "ProbeOptions", "never_raising")
    and not name.startswith("require_")
)
"""What the callback calls; what `attach` requires is asked before training."""

FAST = "look_ahead", "look_back", "bare_model"


class Assigning(torch.nn.Module):
    """A layer that keeps what it last read, in each place where a module can keep it."""

    def __init__(self, inner, in_place):
        super().__init__()
        self.inner, self.in_place = inner, in_place
        self.register_buffer("seen", torch.zeros(1))
        self.register_buffer("calls", torch.zeros(1))
        self.last, self.table, self.lists = None, {"x": [None]}, [[], set()]
        self.place = types.SimpleNamespace(x=None)

    def forward(self, x):
        if not self.training:  # in passes of the probe
            if self.in_place:
                self.calls += 1  # which a pass of forward mode refuses
            y = x.sum().reshape(1)
            self.seen = y
            self.last, self.place.x, self.table["x"][0], self.table["y"] = y, y, y, y
            self.lists[0].append(y)
            self.lists[1].add(y)
            self.part = Assigned(y)
        return self.inner(x)


class Assigned(torch.nn.Module):
    """A part that a forward pass made."""

    def __init__(self, y):
        super().__init__()
        self.y = y


def held(module):
    return (
        *(module.last, module.place.x, module.table, [list(x) for x in module.lists]),
        *(float(module.seen), float(module.calls), hasattr(module, "part")),
    )


def saved(made, folder):
    made.save_model(str(folder))
    return load_file(folder / "model.safetensors")


@pytest.mark.parametrize("in_place", [False, True])
def test_a_module_that_assigns_in_its_forward_is_as_it_was_and_can_be_saved(tmp_path, in_place):
    made = following.grpo(tmp_path, steps=2)
    layer = made.model.base_model.model.model.layers[0]
    layer.mlp = Assigning(layer.mlp, in_place)
    probe = ise.EntropyProbe(
        ["1+2=", "5+4="], every=1, size=8, options=ProbeOptions(second_order=True)
    ).attach(made)

    class AsItWas(TrainerCallback):
        """Compares before and after the probe's own hooks, between which training does nothing."""

        def __init__(self):
            self.states = []

        def on_pre_optimizer_step(self, *_, **__):
            self.states.append(held(layer.mlp))

    made.callback_handler.callbacks.insert(0, first := AsItWas())
    made.add_callback(first)
    following.run(made)
    assert (len(probe.history), probe.off) == (2, False)
    assert all((reading.first_order is None) == in_place for reading in probe.history)
    assert all(state == first.states[0] for state in [*first.states, held(layer.mlp)])
    made.save_model(str(tmp_path / "end"))


@pytest.mark.parametrize(
    "name", [pytest.param(x, marks=() if x in FAST else pytest.mark.slow) for x in PARTS]
)
def test_any_part_of_the_probe_may_fail(tmp_path, monkeypatch, caplog, name):
    def failing(*_, **__):
        raise RuntimeError(f"{name} fails")

    setting = None, False, 1
    plain = saved(trained(tmp_path / "plain", *setting), tmp_path / "a")
    monkeypatch.setattr(callback, name, failing)
    try:
        probe = ise.EntropyProbe(["1+2=", "5+4="], every=1, size=8, record=False)
    except RuntimeError:  # before training
        return
    probed = trained(tmp_path / "probed", *setting, Attached(probe))
    assert all(torch.equal(x, plain[n]) for n, x in saved(probed, tmp_path / "b").items())
    assert len(probe.history) < 2 or not probe.off


class Attached:
    """A probe whose attachment may be refused, which ends no run either."""

    def __init__(self, probe):
        self.probe = probe

    def attach(self, trainer):
        try:
            self.probe.attach(trainer)
        except RuntimeError:
            return


@pytest.mark.parametrize("event", EVENTS)
def test_no_event_raises_even_where_the_report_of_its_error_does(event, monkeypatch, caplog):
    class Unsayable(Exception):
        def __str__(self):
            raise RuntimeError("no words")

    def failing(*_, **__):
        raise Unsayable

    probe = ise.EntropyProbe(["1+2="], every=1, size=2)
    for name in PARTS:
        monkeypatch.setattr(callback, name, failing)
    probe._record, probe._before, probe._policy = True, [None], types.SimpleNamespace(model=None)
    probe._recorder = types.SimpleNamespace() if event == "on_substep_end" else None
    given = {"metrics": {}} if event == "on_predict" else {"model": None, "optimizer": None}
    getattr(probe, event)(None, types.SimpleNamespace(global_step=0), None, **given)
    assert probe.off == (event in vars(type(probe)))
    if probe.off:
        assert "training continues" in caplog.text


def test_a_log_line_ends_no_run(tmp_path, caplog):
    made = following.grpo(tmp_path, steps=1)
    probe = ise.EntropyProbe(["1+2="], every=1, size=2).attach(made)
    probe._latest = None
    made.log({"loss": 1.0})
    assert made.state.log_history[-1]["loss"] == 1.0
    assert "not logged" in caplog.text
