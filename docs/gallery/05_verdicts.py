# %% [markdown]
# # When the responses no longer represent the policy
#
# 512 responses, reweighted to a policy that moves away from the one that drew them. The effective
# sample size falls: crosses are that of the batch, points that with each token integrated over the
# vocabulary, from which the verdict follows: trust, smooth (no interval) or resample. The Pareto
# shape k̂ of the weights' tail is a second diagnostic. The line is the exact value, by listing every
# response; the points leave it as the weights degenerate.

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from tiny import BLUE, GREY, ORANGE, tiny_policy

import isentrope as ise

policy = tiny_policy()
exact = ise.oracle.enumerate_policy(policy, [[1, 2], [3]], max_new_tokens=4)
generator = torch.Generator().manual_seed(1)
v = {
    n: 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    for n, p in policy.theta.items()
}
rates = np.geomspace(0.05, 6, 14)
sweep = ise.entropy_change(policy, exact.sample(512, seed=0), v, rates.tolist(), order=0)
truth = [exact.entropy_change(v, float(eta)) for eta in rates]

# %%
figure, (top, middle, bottom) = plt.subplots(
    3, 1, figsize=(6, 6), sharex=True, height_ratios=(3, 1, 1), layout="constrained"
)
top.plot(rates, truth, color=GREY, lw=1, label="exact")
styles = (("trust", BLUE, "o"), ("smooth", "#E69F00", "s"), ("resample", ORANGE, "v"))
for verdict, colour, shape in styles:
    points = [p for p in sweep.points if p.verdict == verdict]
    where = [p.eta for p in points]
    top.plot(where, [p.change.value for p in points], shape, color=colour, label=verdict)
    if verdict == "trust":
        top.vlines(where, [p.change.ci_low for p in points], [p.change.ci_high for p in points])
    middle.plot(where, [p.ess_integrated / 512 for p in points], shape, color=colour)
    middle.plot(where, [p.ess / 512 for p in points], "x", color=colour)
    bottom.plot(where, [p.khat for p in points], shape, color=colour)
bottom.axhline(min(1 - 1 / np.log10(512), 0.7), color=GREY, ls=":", lw=1)
top.set(xscale="log", ylabel="ΔH, nats per token")
middle.set(ylabel="ESS / n", ylim=(0, 1.05))
bottom.set(ylabel="k̂", xlabel="η")
top.legend(frameon=False)
plt.show()
