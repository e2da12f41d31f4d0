"""kill -9 at random moments of a run, and whether it goes on as if nothing had happened."""

import multiprocessing
import random
import signal

import pytest

from tests.training import killing


@pytest.fixture
def processes():
    """Processes that begin with the libraries loaded and nothing computed."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.training.killing"])
    return context


HOLD = {
    "name": "budget",
    "target": {"kind": "hold"},
    "options": {"size": 16, "average": 4},
}
KINDS = {
    "plain": {},
    "budget": {"control": HOLD},
    "influence": {"control": {"name": "influence", "options": {"size": 8}}},
}


def killed(processes, folder, sections, *moment):
    child = processes.Process(target=killing.go_on, args=(folder, sections, *moment))
    child.start()
    child.join()
    assert child.exitcode in (0, -signal.SIGKILL), "the run failed by itself"
    return child.exitcode != 0


def content(folder):
    last = folder / "run" / "training_state" / "step_12"
    names = ("adapter_model.safetensors", "optimizer.pt", "isentrope_state.json")
    found = {name: (last / name).read_bytes() for name in names}
    found |= {path.name: path.read_bytes() for path in last.glob("step_control.safetensors")}
    return found | {"metrics": (folder / "run" / "logs" / "metrics.jsonl").read_bytes()}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_a_run_killed_at_any_moment_goes_on_to_the_bit(tmp_path, processes, kind):
    sections, kills = KINDS[kind], 30 if kind == "plain" else 12
    assert not killed(processes, tmp_path / "whole", sections)
    expected, rng, finished = content(tmp_path / "whole"), random.Random(0), 0
    hit = dict.fromkeys(killing.PHASES, 0)
    while sum(hit.values()) < kills or min(hit.values()) < 2 or finished < 3:
        folder = tmp_path / f"run{finished}"
        folder.mkdir(exist_ok=True)
        for base in ("base", "prompts.jsonl"):  # the same base for all
            if not (folder / base).exists():
                (folder / base).symlink_to(tmp_path / "whole" / base)
        phase = rng.choice(sorted(killing.PHASES))
        seconds = rng.random() * killing.PHASES[phase][2]
        if killed(processes, folder, sections, phase, rng.randint(1, 4), seconds):
            hit[phase] += 1
        else:
            assert content(folder) == expected
            finished += 1
    print(f"{sum(hit.values())} kills, {finished} runs finished: {hit}")
