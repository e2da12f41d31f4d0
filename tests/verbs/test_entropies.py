"""Definitions of entropy against float64 written out, and against what TRL logs."""

import json
import shutil

import pandas as pd
import pytest
import torch

from isentrope import Policy, Rollouts
from isentrope.cli.commands import MEASURING
from isentrope.config.io import load_config
from isentrope.results.answers.entropies import WORDS
from isentrope.verbs.loop import run_verb
from tests.adapters import save_base_model
from tests.probe import following
from tests.tiny_checkpoint import settings
from tests.training.conftest import small_policy

SMALL = ["batch_config.B_E=24", "batch_config.allow_overlap=true", "batch_config.save_batches=true"]


def found(config, *overrides):
    """Rows by batch and definition, and the result."""
    done = run_verb(MEASURING["entropies"], load_config(config, [*SMALL, *overrides]))
    (result,) = done.results
    (where,) = done.measurements.values()
    return {(row.batch, row.definition): row for row in result.rows}, result, where


@pytest.fixture(scope="module")
def trl_run(tmp_path_factory):
    """Two steps of TRL's own trainer, a checkpoint each, with the completions that it logs."""
    folder = tmp_path_factory.mktemp("trl")
    base = small_policy()
    weight = base.model.get_output_embeddings().weight
    ids = torch.tensor([base.tokenizer("2+1=")["input_ids"]])
    with torch.no_grad():  # so that distributions are not uniform, and responses of all lengths end
        weight.mul_(8)
        weight[1] += 0.12 * base.model.model(ids)[0][0, -1]
    save_base_model(base, folder / "base")
    made = following.grpo(
        folder, 2, save_strategy="steps", log_completions=True, temperature=0.7,
        per_device_train_batch_size=16, gradient_accumulation_steps=1,
    )  # fmt: skip
    drawn = []
    keep = made._generate_and_score_completions

    def generate(inputs):
        batch = keep(inputs)
        drawn.append(batch)
        return batch

    made._generate_and_score_completions = generate
    made.train()
    return folder, made, drawn


def as_rollouts(batch):
    """The token ids that TRL drew, prompt by prompt."""
    pads = zip(batch["prompt_ids"], batch["prompt_mask"].bool(), strict=True)
    ids = zip(batch["completion_ids"], batch["completion_mask"].bool(), strict=True)
    return Rollouts(
        [p[m].cpu() for p, m in pads],
        [r[m].cpu() for r, m in ids],
        torch.arange(len(batch["prompt_ids"])) // 4,
        advantages=batch["advantages"].cpu().double(),
    )


@pytest.fixture(scope="module")
def tried(tiny, trl_run, tmp_path_factory):
    """The checkpoint that TRL left after step 1, with the batch that it drew there."""
    folder, _, drawn = trl_run
    where = tmp_path_factory.mktemp("entropies")
    as_rollouts(drawn[1]).save(where / "U.parquet")
    return found(
        settings(tiny, checkpoint={"checkpoint_path": str(folder / "out" / "checkpoint-1")}),
        f"output.directory={where / 'run'}",
        f"batch_config.U_file={where / 'U.parquet'}",
        "precision.runtime_dtype=float64",
        "precision.sampler_dtype=float64",
        "entropies.micro_batch=5",
        "entropies.top_k=3",
        "entropies.top_p=0.9",
        "entropies.bfloat16=true",
    )


def distributions(policy, batch, temperature=0.7):
    """log π of every position of every response, by the model's own forward pass."""
    rows = []
    for prompt, response in zip(batch.prompt_ids, batch.response_ids, strict=True):
        ids = torch.cat((prompt, response))[:-1][None]
        with torch.no_grad(), policy.precision.active():
            logits = policy.model(input_ids=ids).logits[0, -len(response) :].double()
        rows.append((logits / temperature).log_softmax(-1))
    return rows


def entropies_of(rows):
    return [[float(-sum(x.exp() * x for x in p if x > -700)) for p in row] for row in rows]


def per_token(H):
    return sum(map(sum, H)) / sum(map(len, H))


@pytest.mark.parametrize("name", ["E", "U"])
def test_every_definition_is_the_one_that_is_written_out(tried, trl_run, name):
    rows, _, where = tried
    policy = Policy.from_checkpoint(trl_run[0] / "out" / "checkpoint-1", precision="float64")
    batch = Rollouts.load(where / f"{name}.parquet")
    logps = distributions(policy, batch)
    H = entropies_of(logps)
    drawn = [
        [float(row[k, t]) for k, t in enumerate(ids.tolist())]
        for row, ids in zip(logps, batch.response_ids, strict=True)
    ]
    ends = [int(ids[-1]) in policy.eos_token_ids for ids in batch.response_ids]
    flat = sorted((x for h in H for x in h), reverse=True)
    expected = {
        "per_token": per_token(H),
        "response_means": sum(sum(h) / len(h) for h in H) / len(H),
        "per_response": sum(map(sum, H)) / len(H),
        "surprisal": -per_token(drawn),
        "without_end": per_token([h[:-1] if end else h for h, end in zip(H, ends, strict=True)]),
        "temperature_1": per_token(entropies_of(distributions(policy, batch, 1.0))),
        "truncated": per_token(entropies_of([cut(row) for row in logps])),
    }
    if batch.sampler_logprobs is not None:
        expected["sampler_surprisal"] = -per_token([x.tolist() for x in batch.sampler_logprobs])
    if not all(ends):
        expected["finished"] = per_token([h for h, end in zip(H, ends, strict=True) if end])
    for definition, value in expected.items():
        assert rows[name, definition].value.value == pytest.approx(value, rel=1e-9), definition
    short = rows[name, "bfloat16"].value.value
    assert 0 < abs(short - expected["per_token"]) < 0.02 * expected["per_token"]
    top = rows[name, "top_tokens"].value.value
    share = len(flat) // 5
    assert sum(flat[: share + 1]) / (share + 1) - 1e-9 <= top <= sum(flat[:share]) / share + 1e-9
    assert {definition for of, definition in rows if of == name} <= set(WORDS)


def cut(row):
    """log of the distribution that top_k = 3 and then top_p = .9 leave."""
    out = torch.full_like(row, -torch.inf)
    for k, p in enumerate(row.exp()):
        best = sorted(range(len(p)), key=lambda a: -float(p[a]))[:3]
        mass, kept = sum(float(p[a]) for a in best), []
        for a in best:
            if sum(float(p[b]) for b in kept) < 0.9 * mass:
                kept.append(a)
        total = sum(float(p[a]) for a in kept)
        for a in kept:
            out[k, a] = torch.log(p[a] / total)
    return out


def test_differences_are_paired_on_E_and_not_on_U(tried):
    rows, _, _ = tried
    exact = rows["E", "per_token"]
    assert exact.difference.value == exact.difference.se == 0
    for (name, definition), row in rows.items():
        if definition == "per_response":
            assert row.difference is None
            continue
        assert row.difference.value == pytest.approx(row.value.value - exact.value.value)
        if name == "U":
            together = (row.value.se**2 + exact.value.se**2) ** 0.5
            assert row.difference.se == pytest.approx(together)
    warm = rows["E", "temperature_1"]
    assert warm.difference.se < (warm.value.se**2 + exact.value.se**2) ** 0.5


def test_means_of_micro_batches_lie_between_those_of_responses_and_tokens(tried, tmp_path):
    rows, _, where = tried
    one = [f"output.directory={tmp_path / 'run'}", "entropies.micro_batch=1"]
    again, _, _ = found(where / "config.yaml", *one)
    one, other = again["U", "micro_batch_means"].value, rows["U", "response_means"].value
    assert (one.value, one.se) == pytest.approx((other.value, other.se), rel=1e-9)
    several = rows["U", "micro_batch_means"].value.value
    ends = sorted((other.value, rows["U", "per_token"].value.value))
    assert ends[0] < several < ends[1]


def test_the_entropy_that_trl_logs_is_the_row_that_claims_to_be_it(tried, trl_run):
    rows, result, _ = tried
    logged = [row["entropy"] for row in trl_run[1].state.log_history if "entropy" in row]
    assert result.logged == logged[1]
    assert result.logged_from.startswith("checkpoint-2, step 2")
    assert rows["U", "per_token"].value.value == pytest.approx(logged[1], rel=1e-5)
    assert rows["U", "per_token"].agrees
    for other in ("response_means", "surprisal", "finished", "temperature_1", "truncated"):
        assert rows["U", other].agrees is False
    assert rows["E", "per_token"].agrees is None  # of other responses than the logged ones


@pytest.mark.parametrize(
    ("steps", "source"),
    [((4, 5), "step 5, which was taken"), ((4,), "step 4, before which"), ((), None)],
)
def test_a_run_says_its_entropies_by_its_log_where_later_checkpoints_were_removed(
    tiny, tmp_path, steps, source
):
    run = tmp_path / "run"
    shutil.copytree(tiny, run / "training_state", ignore=shutil.ignore_patterns("checkpoint-*"))
    (run / "logs").mkdir()
    lines = [json.dumps({"step": step, "entropy": step / 10}) + "\n" for step in steps]
    (run / "logs" / "metrics.jsonl").write_text("".join(lines))
    _, result, _ = found(settings(run / "training_state"), f"output.directory={tmp_path / 'out'}")
    assert result.logged == (max(steps) / 10 if steps else None)
    assert (result.logged_from or "").startswith(f"metrics.jsonl, {source}" if source else "")


def test_repeats_make_a_table_with_every_definition(tiny, tmp_path):
    where = [f"output.directory={tmp_path / 'run'}", "batch_config.repeats=2"]
    done = run_verb(MEASURING["entropies"], load_config(settings(tiny), [*SMALL, *where]))
    table = pd.read_csv(tmp_path / "run" / "measurements" / "entropies_study.csv")
    mean = table[table["repeat"] == "mean"].set_index("quantity")
    rows = [{(x.batch, x.definition): x.value for x in of.rows} for of in done.results]
    one, other = (row["U", "per_token"].value for row in rows)
    assert mean["value"]["rows[U].per_token.value"] == pytest.approx((one + other) / 2)
    assert mean["se"]["rows[E].per_token.value"] == pytest.approx(rows[0]["E", "per_token"].se)
