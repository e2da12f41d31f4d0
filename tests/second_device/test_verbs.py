"""Every verb writes on a device what it writes on the CPU, in float64.

A record has nine digits of each number. What is solved from nearly equal numbers (a degree of
freedom) keeps fewer of them; `pytest -m gpu` compares quantities to 1e-9.
"""

import json
import os
import re

import pytest
import torch

from isentrope.cli.console import out
from tests.golden import scenes
from tests.golden.checkpoint import frozen_checkpoint
from tests.golden.compare import differences
from tests.golden.make import WIDTH
from tests.golden.scenes import SCENES
from tests.second_device.launch import LIBRARY

pytestmark = pytest.mark.second_device

TRAINED = ("train", "sft")
MEASURED = ("measure", "influence", "kernel", "noise", "variance", "entropies", "audit", "try")
VERBS = (*MEASURED, "check", "evaluate")
NAMES_THE_DEVICE = re.compile(r"[./]device(_map)? was 'cpu' and is 'cuda(:\d)?'$")


@pytest.fixture(scope="session")
def frozen(tmp_path_factory):
    return frozen_checkpoint(tmp_path_factory.mktemp("frozen"))


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setattr(out, "width", WIDTH)


@pytest.fixture
def on(monkeypatch, frozen, tmp_path):
    """The record of a scene whose checkpoints are loaded onto a device."""
    write = scenes.write

    def record(name, device):
        def placed(folder, content):
            if where := content.get("checkpoint"):
                content = content | {"checkpoint": where | {"device_map": device}}
            return write(folder, content)

        monkeypatch.setattr(scenes, "write", placed)
        folder = tmp_path / device.replace(":", "")
        folder.mkdir()
        return json.loads(json.dumps(SCENES[name](frozen, folder)))

    return record


def apart(here, there, relative, absolute):
    """Where two records differ, but for the name of the device and what is printed."""
    for record in (here, there):
        record.pop("printed", None)
        record.pop("screen", None)
    found = differences(here, there, relative=relative, absolute=absolute)
    return [line for line in found if not NAMES_THE_DEVICE.search(line)]


def used():
    """Changes with every use of the device."""
    if LIBRARY in os.environ:
        return torch.ops.second_device.counts()
    return torch.cuda.memory_stats().get("allocation.all.allocated", 0)


@pytest.mark.gpu
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_writes_what_it_writes_on_the_cpu(verb, on, tmp_path):
    before = used()
    here = on(verb, "cpu")
    assert used() == before, "a run on the CPU has used the device"
    there = on(verb, "cuda")
    assert used() != before, "a run on the device has not used it"
    assert apart(here, there, 1e-7, 1e-12) == []
    if verb == "measure":
        scenes.call("report", tmp_path / "cuda" / "run")


@pytest.mark.parametrize("verb", TRAINED)
def test_a_training_verb_writes_what_it_writes_on_the_cpu(verb, on, monkeypatch):
    """In float32, which trainers run in, to what the golden files are compared to."""
    monkeypatch.setenv("SECOND_DEVICES", "0")
    here = on(verb, "cpu")
    monkeypatch.setenv("SECOND_DEVICES", "1")
    assert apart(here, on(verb, "cuda"), 1e-3, 1e-5) == []


def test_every_verb_with_numbers_is_compared():
    without = {"study", "report", "plan", "convert", "demo"}  # measure twice, read files, train
    assert {*VERBS, *TRAINED} == SCENES.keys() - without
