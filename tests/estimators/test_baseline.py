import pytest
import torch

from isentrope.estimators.baseline import cross_fitted_baseline
from tests import cases


def baseline(entropies, tokens, functional="per_sequence", **options):
    return cross_fitted_baseline(
        entropies, tokens, torch.arange(len(entropies)), functional, **options
    )


def test_baseline_of_a_sequence_does_not_see_that_sequence():
    """Changing the future of a response leaves its own baselines alone: (p, t_<k) only."""
    sample = cases.array_sample(n=40, t=6)
    entropies, tokens = sample.entropies.clone(), torch.ones(40, 6, dtype=torch.float64)
    before = baseline(entropies, tokens)
    entropies[3, 4:] += 5.0
    after = baseline(entropies, tokens)
    torch.testing.assert_close(after[3, :4], before[3, :4])
    assert not torch.allclose(after[2], before[2])  # another fold, fitted on sequence 3


def test_baseline_predicts_a_predictable_entropy_to_go():
    generator = torch.Generator().manual_seed(0)
    level = torch.rand(400, 1, generator=generator, dtype=torch.float64)
    entropies, tokens = level.expand(400, 5).clone(), torch.ones(400, 5, dtype=torch.float64)
    to_go = entropies - entropies.mean(0)
    target = to_go.sum(1, keepdim=True) - to_go.cumsum(1)
    error = (baseline(entropies, tokens) - target)[:, 0]
    assert float(error.var() / target[:, 0].var()) < 0.05


@pytest.mark.parametrize("functional", ["per_token", "per_sequence"])
def test_baseline_is_zero_where_there_is_no_token(functional):
    sample = cases.array_sample()
    tokens = sample.functional.tokens
    b = baseline(sample.entropies, tokens, functional, features=torch.randn(40, 6, 3).double())
    assert float(b[tokens == 0].abs().sum()) == 0
    assert float(b[tokens == 1].abs().sum()) > 0


def test_one_prompt_cannot_be_cross_fitted():
    with pytest.raises(ValueError, match="at least two"):
        cross_fitted_baseline(torch.ones(3, 2), torch.ones(3, 2), torch.zeros(3), "per_token")


def test_where_all_sequences_are_alike_there_is_nothing_to_predict():
    entropies = torch.linspace(0.2, 1.5, 6, dtype=torch.float64).expand(40, 6).clone()
    found = baseline(entropies, torch.ones(40, 6, dtype=torch.float64))
    assert float(found.abs().max()) < 1e-9
