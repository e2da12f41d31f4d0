"""A plan's passes are those that the verb takes, counted while it runs."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.models.checkpoint import meta_model
from isentrope.planning.memory import trainable_parameters
from isentrope.verbs import passes
from isentrope.verbs.loop import run_verb
from tests.tiny_checkpoint import settings
from tests.verbs.counted_passes import count_passes_taken

KINDS = ("forward", "backward", "forward_mode", "second_order")
INDEPENDENT = {"overlap": "independent"}  # a tiny policy repeats itself
SEQUENCES = {"tokens": False, "share_responses": 2}
CASES = [
    ("measure", {}),
    ("measure", {"estimator": {"method": "doubly-robust", "order": 1}}),
    ("measure", {"estimator": {"order": 0, "functional": "per_sequence"}}),
    ("measure", {"estimator": {"method": "resampled"}}),
    ("influence", {}),
    (
        "influence",
        {"analysis": SEQUENCES, "estimator": {"functional": "per_sequence"}},
    ),
    ("influence", {"analysis": SEQUENCES | {"groups": 1, "reward": False}}),
    ("influence", {"analysis": {"tokens": False, "overlap": "u_statistic"}}),
    (
        "kernel",
        {
            "analysis": SEQUENCES,
            "fisher_kernel": {"blocks": ["UU", "EU", "FU", "EE"]},
        },
    ),
    ("kernel", {"fisher_kernel": {"blocks": ["EU"], "preconditioned": False}}),
    ("noise", {}),
    ("variance", {"batch_config": {"B_E": 8}}),
    ("audit", {"analysis": {"draws": 10}}),
]


def planned(verb, config, folder, run):
    """Stage → Counter of responses × passes by kind, where U has the prompts that it had."""
    parameters = trainable_parameters(meta_model(folder / "step_4"))
    batches = passes.batches_of(verb, config)
    if "F" in batches and verb != "measure":
        distinct = run.results[0].batches.U.distinct_prompts
        responses = distinct * config.analysis.share_responses
        batches["F"] = replace(batches["F"], prompts=distinct, responses=responses)
    counting = passes.Counting(config, batches, parameters, 8)
    counts = defaultdict(Counter)
    for part in passes.count_passes(verb, counting):
        for kind, count in zip(KINDS, part.passes, strict=True):
            counts[part.stage][kind] += count * part.responses
    return counts


@pytest.mark.parametrize(("verb", "sections"), CASES, ids=str)
def test_a_verb_takes_the_passes_that_are_planned(verb, sections, tiny, tmp_path, monkeypatch):
    sections = {
        **sections,
        # equal groups, and enough prompts for every part
        "batch_config": {"B_E": 32, "B_U": 4} | sections.get("batch_config", {}),
        "analysis": INDEPENDENT | sections.get("analysis", {}),
        "output": {"directory": str(tmp_path / "run")},
    }
    config = load_config(settings(tiny, **sections))
    run, taken = count_passes_taken(lambda: run_verb(MEASURING[verb], config), monkeypatch)
    stages = planned(verb, config, tiny, run)
    assert {name: +counts for name, counts in taken.items() if +counts} == {
        name: +counts for name, counts in stages.items() if +counts
    }


def test_every_verb_is_counted_or_said_not_to_be():
    cure = "COUNTED of src/isentrope/results/verbs.py and count_passes, or the names in this test"
    assert set(MEASURING) - set(passes.COUNTED) == {"try", "entropies"}, cure


def test_a_file_has_as_many_responses_as_rows(tiny, tmp_path):
    file = tmp_path / "U.jsonl"
    file.write_text('{"prompt_ids": [2], "response_ids": [3]}\n' * 7)
    config = load_config(settings(tiny, batch_config={"U_file": str(file)}))
    batches = passes.batches_of("noise", config)
    assert (batches["U"].responses, batches["U"].file) == (7, str(file))
    assert (batches["E"].responses, batches["E"].tokens) == (12, 36)
