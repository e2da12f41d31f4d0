# %% [markdown]
# # One weight per sequence, or one per prefix
#
# The entropy before token k depends on the tokens before it. An estimator that weights it by the
# ratio of the *whole* response includes the variance of later tokens. The figure has sixty batches
# of 128 responses at increasing rates. The error of the prefix estimator is smaller, and the
# difference grows with the distance that the policy moves.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from tiny import BLUE, GREEN, ORANGE

import isentrope as ise

table = ise.oracle.TabularPolicy(vocabulary=5, max_new_tokens=4)
policy = ise.Policy(table, eos_token_id=0, pad_token_id=0)
exact = ise.oracle.enumerate_policy(policy, [[1], [2], [3]], max_new_tokens=4)
generator = torch.Generator().manual_seed(1)
(name,) = policy.names
v = {name: torch.randn(policy.theta[name].shape, generator=generator, dtype=torch.float64)}
rates = [0.01, 0.1, 0.3, 0.6, 1.0, 1.5]
truth = np.array([exact.entropy_change(v, eta, "sequence") for eta in rates])

# %%
batches = [exact.sample(128, seed) for seed in range(60)]


def square_errors(method):
    """(60, rates): the squared error of each batch."""
    estimator = ise.EstimatorOptions("sequence", method)
    sweeps = [ise.entropy_change(policy, b, v, rates, estimator, order=0) for b in batches]
    return (np.array([[p.change.value for p in sweep.points] for sweep in sweeps]) - truth) ** 2


plain = square_errors("sequence")
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
axes.axhline(1, color=ORANGE, label="sequence")
draws = np.random.default_rng(0).integers(60, size=(500, 60))  # batches, with replacement
for method, colour, shape in (("prefix", BLUE, "o"), ("doubly-robust", GREEN, "s")):
    errors = square_errors(method)
    ratio = errors.mean(0) / plain.mean(0)
    spread = (errors[draws].mean(1) / plain[draws].mean(1)).std(0)
    axes.errorbar(rates, ratio, spread, fmt=f"{shape}-", color=colour, capsize=3, label=method)
axes.set(xscale="log", ylim=(0, 1.2), xlabel="η", ylabel="mean square error ÷ that of sequence")
axes.legend(frameon=False)
plt.show()
