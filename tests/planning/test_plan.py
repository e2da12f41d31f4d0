"""What a plan says of its parts: whether they fit, and a change that would."""

import pytest

from isentrope.planning.plan import PassesOver, Plan
from isentrope.verbs.planned import bytes_of


def plan_of(memory):
    """A plan whose two parts hold 600 and 1,000 bytes, of which 200 are logits."""
    parts = (
        PassesOver(
            "drawing",
            "E",
            64,
            "batches",
            memory={"KV cache": 400, "logits": 200},
            setting="sampling.batch_size",
            value=64,
        ),
        PassesOver(
            "sweep",
            "E",
            64,
            "sweep",
            forward=7,
            memory={"activations": 800, "logits": 200},
            value=8000,
        ),
    )
    return Plan("measure", "step_4", {}, 0, memory, parts=parts)


def test_the_cure_is_on_the_line_of_each_part_that_does_not_fit():
    assert plan_of(1000).fits
    assert plan_of(999).cure == "--set sampling.max_tokens=4096 would fit."
    both = plan_of(400).cure
    assert both == "--set sampling.batch_size=32 --set sampling.max_tokens=1024 would fit."
    assert "held whatever is read at a time" in plan_of(200).cure


def test_micro_batches_that_would_fit_divide_a_step():
    for room, size in ((900, 6), (599, 4), (420, 3), (299, 1)):
        part = PassesOver(
            "update",
            "U",
            12,
            "step",
            forward=1,
            backward=1,
            memory={"activations": 1080, "logits": 120},
            setting="training.micro_batch",
            value=12,
        )
        planned = Plan("train", "toy", {}, 0, room, parts=(part,))
        assert planned.cure == f"--set training.micro_batch={size} would fit."


def test_what_is_always_held_counts_beside_the_largest_part():
    planned = Plan("measure", "step_4", {"weights": 50}, 7, 1100, parts=plan_of(0).parts)
    assert planned.peak == 50 + 7 + 1000
    assert planned.largest.name == "sweep"


def test_memory_is_given_with_its_unit():
    assert bytes_of("16GB") == 16 * 10**9
    assert bytes_of("1.5 GiB") == 3 * 2**29
    for wrong in ("16", "GB", "-1GB", "0GB", "1e3GB"):
        with pytest.raises(ValueError, match="is not a size: write 16GB"):
            bytes_of(wrong)
