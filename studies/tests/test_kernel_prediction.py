"""Predicted norms and influences of the model of the kernel, by hand."""

import torch

from studies.kernel_prediction import influences, predicted_norms


def test_norms_on_a_line_of_logarithms_are_predicted_exactly():
    generator = torch.Generator().manual_seed(0)
    logs = torch.randn(12, 2, generator=generator, dtype=torch.float64)
    columns = torch.cat([torch.ones(12, 1, dtype=torch.float64), logs], 1)
    norms = (columns @ torch.tensor([0.3, 1.5, -0.4], dtype=torch.float64)).exp()
    fitted = torch.arange(12) < 6
    torch.testing.assert_close(predicted_norms(norms, columns, fitted), norms[~fitted])


def test_influences_leave_the_response_itself_out():
    generator = torch.Generator().manual_seed(1)
    w = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    e, x = torch.randn(2, 5, generator=generator, dtype=torch.float64)
    K = w @ w.T
    size = K.diagonal().sqrt()
    found = influences(K / size[:, None] / size, K.diagonal(), e, x)
    truth = [x[j] * sum(e[i] * K[i, j] for i in range(5) if i != j) for j in range(5)]
    torch.testing.assert_close(found, torch.stack(truth))
