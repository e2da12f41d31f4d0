import pytest
import torch

from isentrope.estimators.jackknife import infinitesimal_jackknife
from tests import cases


def test_error_of_a_mean_is_the_textbook_one():
    x = torch.randn(50, dtype=torch.float64)
    result = infinitesimal_jackknife(lambda w: (w @ x / w.sum())[None], torch.arange(50))
    assert float(result.standard_errors[0]) == pytest.approx(float(x.std()) / 50**0.5)


def test_error_of_a_ratio_is_the_delta_method():
    x, y = torch.randn(2, 60, dtype=torch.float64) + 3
    result = infinitesimal_jackknife(lambda w: ((w @ x) / (w @ y))[None], torch.arange(60))
    ratio = x.mean() / y.mean()
    expected = ((x - ratio * y) / y.mean()).std() / 60**0.5
    assert float(result.standard_errors[0]) == pytest.approx(float(expected))


def test_units_are_prompts_not_sequences():
    """Eight copies of each response carry no more information than one."""
    x = torch.randn(20, dtype=torch.float64)
    once = infinitesimal_jackknife(lambda w: (w @ x / w.sum())[None], torch.arange(20))
    copies, groups = x.repeat_interleave(8), torch.arange(20).repeat_interleave(8)
    eight = infinitesimal_jackknife(lambda w: (w @ copies / w.sum())[None], groups)
    torch.testing.assert_close(once.standard_errors, eight.standard_errors)


@pytest.mark.parametrize("method", cases.METHODS)
def test_influence_is_the_derivative_by_weight(method):
    sample = cases.array_sample(method=method)
    f, r, h = sample.functional, sample.series[1].logprobs, sample.entropies
    result = infinitesimal_jackknife(lambda w: f(w, r, h)[None], sample.prompt_index)
    even = torch.full((40,), 1 / 40, dtype=torch.float64)
    tilt = torch.zeros(40, dtype=torch.float64)
    tilt[7] = 1e-5
    slope = (f(even + tilt, r, h) - f(even - tilt, r, h)) / 2e-5 / 40
    assert float(result.influences[0, 7]) == pytest.approx(float(slope), rel=1e-4)


def test_two_units_have_an_error_and_one_has_none():
    x = torch.tensor([1.0, 4.0], dtype=torch.float64)
    two = infinitesimal_jackknife(lambda w: (w @ x / w.sum())[None], torch.arange(2))
    assert float(two.standard_errors[0]) == pytest.approx(1.5)
    one = infinitesimal_jackknife(lambda w: (w @ x / w.sum())[None], torch.zeros(2))
    assert bool(one.standard_errors.isnan().all())


def test_a_difference_of_two_statistics_is_the_statistic_of_their_difference():
    x, y = torch.randn(2, 30, dtype=torch.float64)

    def means(*columns):
        return lambda w: torch.stack([w @ column / w.sum() for column in columns])

    both = infinitesimal_jackknife(means(x, y), torch.arange(30)).less(0)
    alone = infinitesimal_jackknife(means(y - x), torch.arange(30))
    assert float(both.values[1]) == pytest.approx(float(alone.values[0]))
    torch.testing.assert_close(both.standard_errors[1:], alone.standard_errors)
