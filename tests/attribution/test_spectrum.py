import numpy as np
import pytest
import torch

from isentrope.attribution.fisher.block import singular_spectrum
from isentrope.attribution.fisher.prompt_pairs import PromptPairs
from isentrope.attribution.fisher.spectrum import (
    carriers,
    kernel_spectrum,
    norm_outliers,
    simulated_null,
)
from isentrope.attribution.fisher.square import SquareKernel
from tests.attribution.deleting import errors_of_dropping
from tests.attribution.test_structure import planted_gram


def wishart(n, d, seed=0, lengths=None):
    rows = np.random.default_rng(seed).normal(size=(n, d))
    rows = rows if lengths is None else lengths[:, None] * rows
    return torch.from_numpy(rows @ rows.T)


def leading(matrix, k=1):
    """The k-th leading eigenvector."""
    return torch.linalg.eigh(matrix)[1][:, -k]


def null(spectrum, name):
    return next(null for null in spectrum.nulls if null.name == name)


def test_eigenvalues_and_effective_rank_are_those_of_the_definition():
    matrix, prompts = planted_gram(6, 3)
    found = kernel_spectrum(SquareKernel.of(matrix, prompts), top=(1, 5, 99))
    values = np.linalg.eigvalsh(matrix.numpy())[::-1]
    np.testing.assert_allclose(found.eigenvalues, values, atol=1e-12)
    assert found.effective_rank.value == pytest.approx(values.sum() ** 2 / (values**2).sum())
    assert list(found.shares) == [1, 5]
    assert found.shares[5].value == pytest.approx(values[:5].sum() / values.sum())
    assert list(found.leading_carriers) == carriers(leading(matrix))


def test_eigenvalues_that_are_rounding_are_zero_and_have_no_participants():
    """Ten directions for forty sequences: eigenvectors of the other thirty are of no meaning."""
    rows = np.random.default_rng(2).normal(size=(40, 10))
    noise = np.random.default_rng(3).normal(size=(40, 40))
    exact, noise = torch.from_numpy(rows @ rows.T), torch.from_numpy(noise + noise.T)
    for rounding in (0.0, 1e-14, 1e-5):  # of float64, and of rows that are held in less
        found = kernel_spectrum(
            SquareKernel.of(exact + rounding * noise, torch.arange(40) // 4), draws=1
        )
        assert float(found.eigenvalues[9]) > 0.1
        assert not bool(found.eigenvalues[10:].any())
        assert bool(found.participation[:10].isfinite().all())
        assert bool(found.participation[10:].isnan().all())
    pairs = PromptPairs(torch.arange(40) // 4, 10 + torch.arange(30) // 4)
    norms = exact.diagonal(), exact.diagonal()[:30]
    cross = singular_spectrum(exact[:, :30], pairs, norms)
    assert float(cross.values[9]) > 0.1
    assert not bool(cross.values[10:].any())


@pytest.mark.parametrize("bits", [1, -1])
def test_equal_responses_are_listed_in_their_own_order(bits):
    """Each response is there four times: any order of the four would hold as much."""
    rows = np.random.default_rng(4).normal(size=(10, 50)) * np.linspace(1, 9, 10)[:, None]
    rows = np.tile(rows, (4, 1)) * (1 + bits * 2.0**-51 * np.arange(40))[:, None]
    matrix = torch.from_numpy(rows @ rows.T)
    for listed in (carriers(leading(matrix), 0.99), norm_outliers(matrix.diagonal(), 0.5)):
        places = {x: [y for y in listed if y % 10 == x % 10] for x in listed}
        assert len(listed) > 4
        assert all(same == sorted(same) for same in places.values())
    pair = torch.tensor([[4.0, 4.0, 0.0], [4.0, 4.0, 0.0], [0.0, 0.0, 1.0]], dtype=torch.float64)
    for rounding in (-1e-15, 1e-15):
        halves = leading(pair).abs()
        halves[0] += rounding
        assert carriers(halves) == [0]


@pytest.mark.parametrize("k", [1, 5, 20])
def test_the_error_of_a_share_is_that_of_dropping_each_prompt(k):
    matrix, prompts = planted_gram(20, 4, shared=0.3, d=200)

    def share(kept):
        values = torch.linalg.eigvalsh(matrix[kept][:, kept]).flip(0)
        return float(values[:k].sum() / values.sum())

    exact = errors_of_dropping(prompts, share)
    found = kernel_spectrum(SquareKernel.of(matrix, prompts), draws=1)
    assert found.shares[k].se == pytest.approx(exact, rel=1e-3)


@pytest.mark.parametrize(
    ("n", "d"),
    [(100, 400), *(pytest.param(*x, marks=pytest.mark.slow) for x in ((200, 80), (150, 150)))],
)
def test_random_rows_have_the_effective_rank_and_the_edges_of_theory(n, d):
    found = [
        kernel_spectrum(SquareKernel.of(wishart(n, d, s)), d, draws=1, top=()) for s in range(20)
    ]
    ranks = np.array([s.effective_rank.value for s in found])
    theory = null(found[0], "all parameters")
    assert abs(ranks.mean() - theory.effective_rank) < max(4 * ranks.std() / 20**0.5, 0.05)
    largest = np.mean([float(s.eigenvalues[0]) for s in found])
    smallest = np.mean([float(s.eigenvalues[min(n, d) - 1]) for s in found])
    assert largest == pytest.approx(theory.upper, rel=0.05)
    assert smallest == pytest.approx(theory.lower, abs=0.02 * theory.upper)
    fitted = np.array([s.fitted_dimension.value for s in found])
    assert fitted.mean() == pytest.approx(d, rel=0.03)


@pytest.mark.slow
def test_random_rows_exceed_the_simulated_edge_in_one_of_twenty():
    above = [
        null(kernel_spectrum(SquareKernel.of(wishart(30, 60, s)), top=()), "observed norms").above
        > 0
        for s in range(300)
    ]
    assert 0.01 <= np.mean(above) <= 0.10


@pytest.mark.parametrize("d", [25, 400])
def test_long_rows_exceed_the_wishart_edge_and_not_that_of_their_norms(d):
    lengths = np.where(np.arange(100) < 10, 3.0, 1.0)
    found = kernel_spectrum(SquareKernel.of(wishart(100, d, 1, lengths)))
    edge = null(found, "fitted dimension")
    assert edge.above is None  # ten are above it, and none of them is a finding
    assert float(found.eigenvalues[0]) > edge.upper
    assert null(found, "observed norms").above == 0
    assert null(found, "observed norms").effective_rank == pytest.approx(
        found.effective_rank.value, rel=0.05
    )


def test_a_common_direction_stands_out_and_names_its_carriers():
    rows = np.random.default_rng(0).normal(size=(80, 2000))
    rows[[3, 17, 42]] += 2.0
    rows[60] *= 3.0
    matrix = torch.from_numpy(rows @ rows.T)
    found = kernel_spectrum(SquareKernel.of(matrix, torch.arange(80) // 4), 2000)
    assert null(found, "observed norms").above >= 1
    assert sorted(carriers(leading(matrix), 0.9)) in ([3, 17, 42], [60])
    assert 60 in {*found.leading_carriers, *carriers(leading(matrix, 2))}
    assert found.norm_outliers[0] == 60
    assert set(found.norm_outliers) <= {3, 17, 42, 60}
    assert 1 <= found.participation[0] < 5


def test_the_simulation_follows_its_seed():
    one, again, other = (
        kernel_spectrum(SquareKernel.of(wishart(20, 50)), seed=s) for s in (1, 1, 2)
    )
    assert one.nulls == again.nulls
    assert one.nulls != other.nulls


@pytest.mark.parametrize("dimension", [8, 20, 30, 200])
def test_simulated_rows_have_the_cosines_of_random_directions(dimension):
    """The mean of cos² is 1/d, so that n rows of one length have rank n/(1 + (n − 1)/d)."""
    rng, n = np.random.default_rng(0), 20
    found = simulated_null((torch.ones(n),), torch.zeros(n), dimension, 300, rng)
    assert found.effective_rank == pytest.approx(n / (1 + (n - 1) / dimension), rel=0.01)


@pytest.mark.slow
def test_intervals_cover_as_stated():
    found = [
        kernel_spectrum(
            SquareKernel.of(*planted_gram(20, 4, shared=0.6, d=200, seed=s)), draws=1, top=[1]
        )
        for s in range(400)
    ]
    columns = zip(
        *((s.effective_rank, s.fitted_dimension, s.shares[1]) for s in found), strict=True
    )
    for estimates in columns:
        mean = np.mean([e.value for e in estimates])
        assert 0.92 <= np.mean([e.covers(mean) for e in estimates]) <= 0.985, estimates[0].unit


def test_zero_rows_are_counted_and_a_zero_kernel_is_refused():
    matrix, prompts = planted_gram(6, 2)
    matrix[0], matrix[:, 0] = 0, 0
    found = kernel_spectrum(SquareKernel.of(matrix, prompts))
    assert found.norm_outliers[0] == 0
    with pytest.raises(ValueError, match="kernel is zero"):
        kernel_spectrum(SquareKernel.of(matrix * 0, prompts))
    with pytest.raises(ValueError, match="one prompt"):
        kernel_spectrum(SquareKernel.of(matrix, prompts * 0))


def test_a_row_is_an_outlier_above_three_and_a_half():
    """Logarithms with median 0 and median absolute deviation 1/1.4826 are their own scores."""
    scores = torch.tensor([0.0, 4.0, -5.0, 3.4, 3.0, *[1 / 1.4826, -1 / 1.4826, 0.0] * 5])
    assert norm_outliers(scores.double().exp()) == [2, 1]
    assert norm_outliers(scores.double().exp(), 2.0) == [2, 1, 3, 4]


def test_simulated_nulls_are_those_of_seed_0_unless_another_is_given():
    matrix, prompts = planted_gram(6, 3)
    kernel = SquareKernel.of(matrix, prompts)
    pairs = PromptPairs(prompts, prompts)
    norms = (matrix.diagonal(), matrix.diagonal())
    for spectrum in (
        lambda **seed: null(kernel_spectrum(kernel, **seed), "observed norms"),
        lambda **seed: singular_spectrum(matrix, pairs, norms, **seed).null,
    ):
        first, again, other = (str(spectrum(**x)) for x in ({}, {"seed": 0}, {"seed": 1}))
        assert first == again != other


def test_without_shares_the_leading_eigenvector_alone_has_its_participation():
    found = kernel_spectrum(SquareKernel.of(*planted_gram(6, 3)), top=(), draws=1)
    assert found.shares == {}
    assert len(found.participation) == 1
