"""influence, kernel and noise on a tiny checkpoint, as a user runs them."""

import json
import shutil

import pandas as pd
import pytest
import torch

from isentrope import (
    FisherKernel,
    InfluenceOptions,
    Policy,
    Rollouts,
    fisher_kernel,
    influence,
    score,
)
from isentrope.config.io import load_config
from isentrope.sampling.prompt import name_prompts
from isentrope.update.step import compute_step
from isentrope.verbs import batches
from tests.tiny_checkpoint import settings

INDEPENDENT = "analysis.overlap=independent"


@pytest.fixture(scope="module")
def run(once):
    """Run a verb with overrides; its folder and results."""
    usual = ("batch_config.allow_overlap=true", "batch_config.save_batches=true")
    return lambda verb, *overrides: once(verb, *usual, "estimator.order=1", *overrides)


def by_hand(tiny, folder):
    policy = Policy.from_checkpoint(tiny / "step_4")
    E, U = (Rollouts.load(folder / f"{name}.parquet") for name in "EU")
    return policy, E, U, compute_step(policy, U, tiny / "step_4", max_response_length=3)


def test_influence_writes_what_the_library_computes(run, tiny):
    folder, results = run("influence", INDEPENDENT)
    policy, E, U, step = by_hand(tiny, folder)
    table = influence(policy, E, U, step, InfluenceOptions(overlap="independent"))
    sequences, tokens = (pd.read_parquet(folder / f"{x}.parquet") for x in ("sequences", "tokens"))
    assert sequences["delta_h"].to_numpy() == pytest.approx(table.per_sequence.numpy(), rel=1e-6)
    assert tokens["delta_h"].to_numpy() == pytest.approx(
        torch.cat(table.per_token).numpy(), rel=1e-6
    )
    assert results["entropy"]["total"]["value"] == pytest.approx(table.total.value, rel=1e-6)
    assert abs(results["entropy"]["closure"]) < 1e-9
    assert "".join(tokens[tokens["sequence"] == 0]["text"]).startswith(U.response_texts[0])
    assert results["reward"]["total"]["unit"] == "reward per η"


def test_shares_are_measured_on_fresh_responses_and_sum_up(run):
    shares = ("analysis.share_responses=3", "analysis.tokens=false")
    _, results = run("influence", INDEPENDENT, *shares)
    shares = results["shares"]
    parts = shares["same_prompt"]["value"] + shares["other_prompt"]["value"]
    assert parts == pytest.approx(shares["gradient"]["value"], rel=1e-9)
    assert "9 fresh responses" in shares["measured_on"]


def test_kernel_writes_its_blocks_and_their_structure(run, tiny):
    folder, results = run("kernel", "fisher_kernel.blocks=[UU, EU]")
    policy, E, U, step = by_hand(tiny, folder)
    for block, sides in {"UU": (U, None), "EU": (E, U)}.items():
        written = FisherKernel.load(folder / block)
        found = fisher_kernel(policy, *sides, preconditioner=step.preconditioner)
        assert torch.allclose(written.matrix, found.matrix, rtol=1e-6)
    assert "diagonal" in results["blocks"]["UU"]["structure"]
    assert results["truncations"]["full"]["ratio"]["value"] == pytest.approx(1)
    assert set(pd.read_parquet(folder / "structure.parquet")["block"]) == {"UU", "EU"}


def test_second_order_by_kernel_is_that_of_forward_mode(run):
    _, results = run("kernel", "fisher_kernel.second_order=true", "batch_config.B_U=2")
    found = results["second_order"]
    assert found["by_kernel"] == pytest.approx(found["by_forward_mode"]["value"], rel=1e-8)


def test_audit_holds_the_proxies_against_the_tokens_of_influence(run, tiny):
    folder, results = run("audit", INDEPENDENT, "analysis.draws=20")
    policy, E, U, step = by_hand(tiny, folder)
    table = influence(policy, E, U, step, InfluenceOptions(overlap="independent"))
    acting = step.token_weights != 0
    advantage = U.advantages[:, None].expand_as(acting)[acting]
    measured = table.entropy.tokens[acting]
    pearson = float(torch.corrcoef(torch.stack((advantage, measured)))[0, 1])
    said = results["tokens"]["proxies"]["advantage"]["pearson"]
    assert said["value"] == pytest.approx(pearson, rel=1e-5)
    assert said["se"] > 0
    assert set(pd.read_parquet(folder / "audit.parquet")["of"]) == {"tokens", "sequences"}


def test_a_stale_batch_is_weighted_by_its_ratios(run, tiny):
    folder, _ = run("influence", INDEPENDENT)
    later = f"checkpoint.checkpoint_path={tiny / 'checkpoint-8'}"
    stale = (f"batch_config.U_file={folder}/U.parquet", "estimator.off_policy=true")
    folder, _ = run("influence", INDEPENDENT, later, *stale, "estimator.clip=null")
    U = Rollouts.load(folder / "U.parquet")
    policy = Policy.from_checkpoint(tiny / "checkpoint-8")
    ratios = (score(policy, U).logprobs - U.padded("sampler_logprobs")).exp()
    tokens = pd.read_parquet(folder / "tokens.parquet")
    expected = U.advantages[:, None] * ratios / (len(U) * 3)
    mask = score(policy, U).mask
    assert tokens["coefficient"].to_numpy() == pytest.approx(expected[mask].numpy(), rel=1e-6)
    assert (ratios[mask] - 1).abs().max() > 1e-5


def test_several_checkpoints_make_one_table(run, tiny):
    both = f"checkpoint.checkpoint_path=[{tiny}/step_4, {tiny}/checkpoint-8]"
    folder, _ = run("influence", both, INDEPENDENT, "analysis.tokens=false")
    table = pd.read_parquet(folder.parent / "influence_all.parquet")
    assert set(table["checkpoint"]) == {"step_4", "step_8"}


def test_bad_settings_are_refused_in_a_sentence(run):
    with pytest.raises(ValueError, match="smallest"):
        run("kernel", "fisher_kernel.memory_gb=1e-9")
    with pytest.raises(ValueError, match="groups"):
        run("influence", "analysis.groups=500", INDEPENDENT)
    with pytest.raises(ValueError, match="4 of them or more"):
        run("noise", "batch_config.B_U=3", INDEPENDENT)
    for verb in ("influence", "audit", "noise"):  # and not as a fault of the model's derivatives
        with pytest.raises(ValueError, match=r"update_vector .* acts in measure.*Set it to null"):
            run(verb, "precision.update_vector={use_amp: true}", "batch_config.B_U=4")


def test_a_verb_that_draws_nothing_afresh_names_the_estimator_it_used(run):
    _, results = run("audit", "estimator.method=resampled", INDEPENDENT, "analysis.draws=10")
    assert results["estimator"]["method"] == "prefix"


def test_fresh_responses_to_us_prompts_have_pairs_by_class(run):
    _, results = run("kernel", "fisher_kernel.blocks=[FU, UU]", "analysis.share_responses=4")
    block = results["blocks"]["FU"]
    parts = block["pair_classes"]
    assert {"same_prompt", "other_prompt"} <= set(parts)
    total = sum(part["contribution"]["value"] for part in parts.values())
    assert total == pytest.approx(block["delta_h"]["kernel"]["value"], rel=1e-9)
    assert total == pytest.approx(block["predictions"]["full"]["total"]["value"], rel=1e-9)
    assert parts["other_prompt"]["fraction"] == pytest.approx(2 / 3)
    clusters = block["clusters"]["parts"]
    assert sum(part["members"] for part in clusters) == 12
    by_cluster = sum(part["delta_h"]["value"] for part in clusters)
    assert by_cluster == pytest.approx(total, rel=1e-9)
    laws = {name: part["falls_as"] for name, part in parts.items()}
    assert laws["same_prompt"] == "1/B"
    assert results["blocks"]["UU"]["pair_classes"]["own"]["falls_as"] == "1/n"
    assert results["blocks"]["UU"]["pair_classes"]["own"]["fraction"] == pytest.approx(1 / 12)


def test_the_kernel_form_agrees_with_forward_mode_on_the_same_responses(run):
    _, results = run("kernel", "fisher_kernel.blocks=[EU]", "batch_config.B_E=96")
    two = results["blocks"]["EU"]["delta_h"]
    error = (two["kernel"]["se"] ** 2 + two["forward_mode"]["se"] ** 2) ** 0.5
    assert abs(two["kernel"]["value"] - two["forward_mode"]["value"]) < 5 * error
    assert two["kernel"]["unit"] == two["forward_mode"]["unit"]


def test_own_and_same_prompt_parts_without_their_pairs_are_refused(run):
    with pytest.raises(ValueError, match=r"analysis\.share_responses.*different sequences"):
        run("kernel", "fisher_kernel.blocks=[FU]")


def test_a_study_of_kernels_follows_the_block_of_two_batches(run, tiny):
    checkpoints = f"checkpoint.checkpoint_path=[{tiny}/step_4, {tiny}/checkpoint-8]"
    folder, _ = run("kernel", checkpoints, "fisher_kernel.blocks=[EU]")
    table = pd.read_csv(folder.parent / "kernel_study.csv")
    of = table[table["quantity"] == "blocks.EU.singular.effective_rank"]
    assert set(of["checkpoint"]) == {"step_4", "step_8"}
    assert "blocks.EU.delta_h.kernel" in set(table["quantity"])


def test_prompts_of_u_are_weighted_by_the_pass_rates_in_the_checkpoint(
    run, tiny, tmp_path, monkeypatch
):
    copy = shutil.copytree(tiny / "step_4", tmp_path / "step_4")
    (copy / "manifest.json").unlink(missing_ok=True)
    keys = [
        p.key
        for p in name_prompts(load_config(settings(tiny), []).batch_config.update_task().prompts)
    ]
    seen = {keys[0]: [9.0, 9.0]}
    state = {"seed": 0, "weighting": "uniform", "memory": 0.7, "prompts": 24, "drawn": 0}
    state |= {"put_off": [], "seen": seen}
    (copy / "isentrope_state.json").write_text(json.dumps({"prompt_sampler": state}))
    found = []
    drawn = batches.update_batch

    def watched(policy, prompts, *args, weights, **options):
        found.append(dict(zip([p.key for p in prompts], weights, strict=True)))
        return drawn(policy, prompts, *args, weights=weights, **options)

    monkeypatch.setattr(batches, "update_batch", watched)
    where = f"checkpoint.checkpoint_path={copy}"
    run("influence", where, "batch_config.U_weighting=difficulty", INDEPENDENT)
    (weights,) = found
    assert weights.pop(keys[0]) == pytest.approx(4 * 0.95 * 0.05 + 0.1)
    assert set(weights.values()) == {1.1}


def test_a_weighting_of_given_prompts_is_refused():
    content = {"checkpoint": {"checkpoint_path": "x"}}
    content["batch_config"] = {"U_weighting": "difficulty", "fixed_prompts": True}
    with pytest.raises(ValueError, match="choose one"):
        load_config(content)
