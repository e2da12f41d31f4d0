"""The Fisher kernel as users get it: blocks, products, files."""

import pytest
import torch

from isentrope import FisherKernel, GradientOptions, Rollouts, fisher_kernel, score
from isentrope.attribution.gradients.storage_plan import Storage
from isentrope.nouns.vectors import multiply
from isentrope.policy.gradient import weighted_gradient
from isentrope.policy.scoring import score_along
from tests import cases
from tests.attribution.test_gram import dense
from tests.attribution.test_sequence_gradients import score_sums

E, U = cases.ragged(7), cases.ragged(6, seed=3)


def positive(policy, seed=2):
    generator = torch.Generator().manual_seed(seed)
    return {
        n: 0.5 + torch.rand(p.shape, generator=generator, dtype=torch.float64)
        for n, p in policy.theta.items()
    }


@pytest.mark.parametrize("name", ["qwen2", "llama"])
def test_a_step_on_u_moves_log_pi_as_the_kernel_says(name):
    policy = cases.lora_policy(name)
    P, x = positive(policy), torch.linspace(-1, 1, 6, dtype=torch.float64)
    K = fisher_kernel(policy, E, U, preconditioner=P)
    step = weighted_gradient(policy, U, x[:, None] * score_sums(U).logprob_weights)
    _, slope = score_along(policy, E, multiply(P, step), 1)
    assert torch.allclose(K.matrix @ x, slope.logprobs.sum(1), rtol=1e-9)


def test_a_batch_with_itself_is_symmetric_and_positive():
    policy = cases.lora_policy("qwen2")
    P = positive(policy)
    K = fisher_kernel(policy, E, preconditioner=P)
    assert K.symmetric
    assert torch.equal(K.matrix, K.matrix.T)
    assert float(torch.linalg.eigvalsh(K.matrix)[0]) > -1e-9
    assert torch.allclose(K.matrix, dense(policy, score_sums(E), score_sums(E), P), rtol=1e-9)


def test_a_block_with_diagonals_has_cosines_and_keeps_them_in_its_file(tmp_path):
    policy = cases.lora_policy("qwen2")
    P = positive(policy)
    K = fisher_kernel(policy, E, U, preconditioner=P, diagonals=True)
    norms = [dense(policy, score_sums(x), score_sums(x), P).diagonal().sqrt() for x in (E, U)]
    cosines = dense(policy, score_sums(E), score_sums(U), P) / norms[0][:, None] / norms[1]
    same = K.pairs.same
    found = K.structure()["cross_prompt"].mean_cosine
    assert found.value == pytest.approx(float(cosines[~same].mean()), rel=1e-8)
    again = FisherKernel.load(K.save(tmp_path / "EU"))
    assert all(torch.equal(a, b) for a, b in zip(again.diagonals, K.diagonals, strict=True))
    bare = fisher_kernel(policy, E, U, preconditioner=P)
    assert bare.structure()["cross_prompt"].mean_cosine is None
    assert FisherKernel.load(bare.save(tmp_path / "bare")).diagonals is None


def test_structure_and_spectrum_come_from_the_block():
    policy = cases.lora_policy("qwen2")
    paired = Rollouts(
        [[1], [2], [3]], [[1, 2], [3, 0], [2], [4, 4], [1, 0], [3, 3]], [0, 0, 1, 1, 2, 2]
    )
    K = fisher_kernel(policy, paired.with_columns(rewards=[1, 0, 1, 0, 0, 1]))
    assert K.structure().relations["diagonal"].mean.value == pytest.approx(
        float(K.matrix.diagonal().mean())
    )
    assert any("wrong" in name for name in K.structure(right_above=0.5).relations)
    assert K.spectrum().eigenvalues.sum() == pytest.approx(float(K.matrix.trace()))
    block = fisher_kernel(policy, E, paired)
    assert "cross_prompt" in block.structure().relations
    with pytest.raises(ValueError, match="two batches"):
        block.spectrum()
    with pytest.raises(ValueError, match="no rewards"):
        fisher_kernel(policy, paired).structure(right_above=0.5)


def test_saved_and_loaded_it_is_the_same(tmp_path):
    policy = cases.lora_policy("qwen2")
    K = fisher_kernel(policy, E, U)
    again = FisherKernel.load(K.save(tmp_path / "kernel"))
    assert torch.equal(again.matrix, K.matrix)
    assert again.rows.equals(K.rows)
    assert (again.symmetric, again.parameters) == (False, K.parameters)


def test_a_response_that_no_parameter_moves_is_a_zero_row_and_is_said():
    policy = cases.policy("table")
    certain = policy.model.table
    with torch.no_grad():  # token 2 after prompt 1 and nothing else
        certain[policy.model._number_rows(torch.tensor([[1]]))[0, 0]] = torch.tensor(
            [-900.0, -900.0, 0.0, -900.0, -900.0], dtype=torch.float64
        )
    rollouts = Rollouts([[1], [2], [3]], [[2], [1], [1]], [0, 1, 2])
    assert float(score(policy, rollouts).logprobs[0].sum()) == 0
    K = fisher_kernel(policy, rollouts, gradients=GradientOptions("loop"))
    assert K.zero_rows == [0]
    assert any("zero" in sentence for sentence in K.structure().warnings)


def test_a_kernel_states_the_rounding_of_the_rows_it_was_made_of():
    policy = cases.lora_policy("qwen2")
    exact = fisher_kernel(policy, E)
    assert exact.rounding < 1e-9
    assert str(exact.spectrum()) == str(exact.spectrum(seed=0)) != str(exact.spectrum(seed=1))
    for kept in ("bfloat16", "int8"):
        stored = fisher_kernel(policy, E, gradients=GradientOptions(storage=Storage(kept=kept)))
        lengths = exact.matrix.diagonal().sqrt()
        error = ((stored.matrix - exact.matrix) / lengths / lengths[:, None]).abs().max()
        assert float(error) < stored.rounding < 0.02
