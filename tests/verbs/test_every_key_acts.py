"""Every key of the configuration does what it is for; no crash passes for an effect."""

import json
import shutil

import pytest

from isentrope import Rollouts
from isentrope.config.keys import all_keys
from isentrope.sampling.tasks.addition import character_tokenizer
from tests.tiny_checkpoint import PROMPTS, in_bfloat16, write_chatty, write_prompts
from tests.verbs.key_effects import (
    CALLS,
    EVERY_VERB,
    FILES,
    LOGGED,
    NUMBERS,
    REFUSED_WITH,
    REFUSED_WITHOUT,
    SEQUENCES,
    Of,
)
from tests.verbs.observing import observe, other_numbers

KINDS = (NUMBERS, FILES, CALLS, REFUSED_WITH, REFUSED_WITHOUT)


@pytest.fixture(scope="module")
def prepared(tiny):
    """Data files, and checkpoints beside step_4, that changes of settings name."""
    in_bfloat16(tiny / "step_4", tiny / "short")
    write_prompts(tiny / "others.jsonl", PROMPTS[::-1][:12])
    shutil.copytree(tiny / "step_4", tiny / "trained")
    (tiny / "trained" / "contract.json").write_text('{"temperature": 1.0}')
    shutil.copytree(tiny / "step_4", tiny / "cooler")
    (tiny / "cooler" / "contract.json").write_text('{"temperature": 0.7}')
    rows = [
        {"prompt": PROMPTS[i // 3], "response": str(i % 3 + 1), "reward": i % 3} for i in range(12)
    ]
    uneven = [row | {"response": row["response"] * (1 + i // 3)} for i, row in enumerate(rows[:9])]
    (tiny / "hand.jsonl").write_text("\n".join(map(json.dumps, uneven)))
    four = Rollouts(
        prompt_ids=[encoded(row["prompt"]) for row in rows],
        response_ids=[encoded(row["response"]) for row in rows],
        prompt_index=[i // 3 for i in range(12)],
        sampler_logprobs=[[-0.5]] * 12,  # of a more confident policy
        rewards=[float(row["reward"]) for row in rows],
    )
    write_chatty(tiny)
    four.save(tiny / "four.parquet")
    four.select(range(9)).save(tiny / "stale.parquet")
    return tiny


def encoded(text):
    return character_tokenizer()(text)["input_ids"]


@pytest.fixture
def run(prepared, tmp_path, monkeypatch):
    """Observe a run with settings, and with a value of a key beside them."""

    def observed(given, *more, until=None):
        verb, overrides = given if isinstance(given, Of) else ("measure", given)
        folder = tmp_path / ("after" if more else "before")
        asked = [*overrides, *more]
        return observe(prepared, folder, asked, monkeypatch, verb=verb, until=until)

    return observed


def test_the_list_is_complete():
    listed = [key for kind in KINDS for key in kind]
    cure = "say in tests/verbs/key_effects.py what the key does"
    assert sorted(listed) == sorted(key for key in all_keys() if "." in key), cure


@pytest.mark.parametrize("key", NUMBERS)
def test_the_key_changes_the_numbers(key, pair):
    given, value = NUMBERS[key]
    before, after = pair(given, f"{key}={value}")
    assert "numbers" in before.differences(after)


@pytest.mark.parametrize("key", FILES)
def test_the_key_changes_the_files_and_no_number_that_both_runs_have(key, pair):
    given, value = FILES[key]
    before, after = pair(given, f"{key}={value}")
    assert before.files != after.files
    shared = before.numbers.keys() & after.numbers.keys()
    assert len(shared) > 20
    assert not other_numbers(before.numbers, after.numbers) & shared


@pytest.mark.parametrize("key", CALLS)
def test_the_key_changes_a_call(key, pair, monkeypatch):
    given, value, function = CALLS[key]
    if key == "checkpoint.device_map":  # the run ends before anything is put there
        monkeypatch.setattr("torch.cuda.is_available", lambda: True)
        monkeypatch.setattr("torch.cuda.device_count", lambda: 8)
        monkeypatch.setattr("torch.cuda.mem_get_info", lambda _: (2**40, 2**40))
    before, after = pair(given, f"{key}={value}", until=function)
    assert before.calls[-1][0] == after.calls[-1][0] == function
    assert before.calls[-1] != after.calls[-1]


@pytest.mark.parametrize("key", REFUSED_WITH)
def test_a_value_of_the_key_is_refused(key, run, before):
    given, value, noun = REFUSED_WITH[key]
    before(given)
    with pytest.raises(ValueError, match=noun):
        run(given, f"{key}={value}")


@pytest.mark.parametrize("key", REFUSED_WITHOUT)
def test_without_the_key_the_run_is_refused(key, run):
    given, value, noun = REFUSED_WITHOUT[key]
    with pytest.raises(ValueError, match=noun):
        run(given)
    run(given, f"{key}={value}")


@pytest.mark.parametrize("given", EVERY_VERB)
def test_nothing_changes_where_no_key_does(given, pair):
    before, after = pair(given, "output.log_level=INFO")
    # a verb that the first run imports keeps the functions that are spied on
    uncompared = set() if given in (LOGGED, SEQUENCES) else {"calls"}
    assert before.differences(after) <= uncompared
