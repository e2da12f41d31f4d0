import pytest
import torch

from isentrope import Rollouts
from isentrope.nouns.rollouts import concatenate


def rollouts(**columns) -> Rollouts:
    given = {
        "prompt_ids": [[1, 2], [1, 2], [3]],
        "response_ids": [[4, 0], [5], [6, 7, 0]],
        "prompt_index": [0, 0, 1],
    }
    return Rollouts(**{**given, **columns})


def full() -> Rollouts:
    return rollouts(
        sampler_logprobs=[[-1.0, -0.5], [-2.0], [-0.1, -0.2, -0.3]],
        rewards=[1, 0, 1],
        advantages=[0.5, -0.5, 0],
        prompt_keys=["a", "a", "b"],
        references=["7", "7", None],
        response_texts=["x", "<b>", "🙂"],
        max_new_tokens=5,
    )


def same(a: Rollouts, b: Rollouts) -> bool:
    tensors = ("prompt_index", "rewards", "advantages")
    lists = ("prompt_ids", "response_ids", "sampler_logprobs")
    return (
        all(torch.equal(getattr(a, n), getattr(b, n)) for n in tensors)
        and all(
            torch.equal(x, y)
            for n in lists
            for x, y in zip(getattr(a, n), getattr(b, n), strict=True)
        )
        and a.prompt_keys == b.prompt_keys
        and a.references == b.references
        and a.response_texts == b.response_texts
        and a.max_new_tokens == b.max_new_tokens
    )


def test_parquet_gives_back_what_it_took(tmp_path):
    path = full().save(tmp_path / "deep" / "batch.parquet")
    assert same(Rollouts.load(path), full())
    assert [p.name for p in path.parent.iterdir()] == ["batch.parquet"]


def test_a_prompt_each_is_expanded_by_the_index():
    short = rollouts(prompt_ids=[[1, 2], [3]])
    assert [p.tolist() for p in short.prompt_ids] == [[1, 2], [1, 2], [3]]


def test_select_keeps_every_column_in_step():
    picked = full().select([2, 0])
    assert [r.tolist() for r in picked.response_ids] == [[6, 7, 0], [4, 0]]
    assert picked.rewards.tolist() == [1, 1]
    assert picked.prompt_keys == ["b", "a"]
    assert picked.max_new_tokens == 5


def test_joined_batches_keep_their_prompt_draws_apart():
    joined = concatenate([full(), full()])
    assert joined.prompt_index.tolist() == [0, 0, 1, 2, 2, 3]
    assert joined.n_prompts == 4
    assert concatenate([full(), rollouts()]).rewards is None


@pytest.mark.parametrize(
    ("columns", "sentence"),
    [
        ({"response_ids": []}, "at least one response"),
        ({"response_ids": [[4], [], [5]]}, "response 1 .*non-empty"),
        ({"response_ids": [[4], [0.5], [5]]}, "response 1 "),
        ({"prompt_index": [0, 1]}, "prompt_index has shape"),
        ({"prompt_ids": [[1]], "prompt_index": [0, 0, 1]}, "prompt 1"),
        ({"prompt_index": [0, 0, 0]}, "0 and 2 .*prompt_index 0"),
        ({"max_new_tokens": 2}, "3 tokens, .*max_new_tokens=2"),
        ({"rewards": [1, 2]}, "rewards has 2 entries for 3"),
        ({"rewards": [[1], [2], [3]]}, "rewards must be 3 finite"),
        ({"advantages": [1, 2, float("nan")]}, "advantages .* finite .*nan"),
        ({"sampler_logprobs": [[-1.0], [-1.0], [-1.0]]}, "1 values for a response of 2"),
        ({"prompt_keys": ["a"]}, "prompt_keys .*1 "),
    ],
)
def test_columns_that_do_not_fit_are_refused(columns, sentence):
    with pytest.raises(ValueError, match=sentence):
        rollouts(**columns)


def test_a_parquet_of_something_else_is_refused(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(ValueError, match="not a rollouts file"):
        Rollouts.load(tmp_path / "x.parquet")


def test_a_mask_in_a_file_holds_no_number_besides_0_and_1(tmp_path):
    import pyarrow as pa
    import pyarrow.parquet as pq

    for mask, read in (([0, 1], True), ([2, 1], False), ([0.5, 1.0], False)):
        columns = {"prompt_ids": [[1]], "response_ids": [[2, 3]], "prompt_index": [0]}
        pq.write_table(pa.table(columns | {"response_mask": [mask]}), tmp_path / "x.parquet")
        if read:
            loaded = Rollouts.load(tmp_path / "x.parquet")
            assert loaded.response_mask[0].tolist() == [False, True]
            continue
        with pytest.raises(ValueError, match="besides 0 and 1"):
            Rollouts.load(tmp_path / "x.parquet")


def test_a_mask_is_no_list_of_positions():
    r = Rollouts([[1]] * 3, [[2], [3], [4]], [0, 1, 2], rewards=[0.0, 1.0, 1.0])
    with pytest.raises(ValueError, match="not a mask"):
        r.select(r.rewards > 0)


def test_a_negative_token_is_refused():
    with pytest.raises(ValueError, match=r"response 0 .*-100"):
        Rollouts([[1]], [[2, -100]], [0])


def test_the_fingerprint_is_of_the_tokens_in_their_order():
    r = Rollouts([[1], [1]], [[2, 3], [4]], [0, 1])
    other = Rollouts([[1], [1]], [[2], [3, 4]], [0, 1])
    assert r.fingerprint == r.with_columns(rewards=[0.0, 1.0]).fingerprint
    assert r.fingerprint not in (other.fingerprint, r.select([1, 0]).fingerprint)
