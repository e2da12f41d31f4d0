# %% [markdown]
# # Do the intervals hold?
#
# A hundred evaluation batches of 128 responses, each with its own 95 % interval for ΔH(η),
# against the exact value. About five of a hundred should miss it, at random. The table with a
# thousand batches, three policies and every estimator is made by `python -m validation.coverage`.

# %%
import matplotlib.pyplot as plt
import torch
from tiny import BLUE, ORANGE

import isentrope as ise

table = ise.oracle.TabularPolicy(vocabulary=5, max_new_tokens=4)
policy = ise.Policy(table, eos_token_id=0, pad_token_id=0)
exact = ise.oracle.enumerate_policy(policy, [[1], [2], [3]], max_new_tokens=4)
generator = torch.Generator().manual_seed(1)
(name,) = policy.names
v = {name: torch.randn(policy.theta[name].shape, generator=generator, dtype=torch.float64)}
eta = 0.3
truth = exact.entropy_change(v, eta)

# %%
batches = [exact.sample(128, seed) for seed in range(100)]
sweeps = [ise.entropy_change(policy, batch, v, [eta], order=0) for batch in batches]
estimates = sorted((sweep.points[0].change for sweep in sweeps), key=lambda e: e.value)
missed = [not e.covers(truth) for e in estimates]

figure, axes = plt.subplots(figsize=(7, 3.6), layout="constrained")
for k, (e, miss) in enumerate(zip(estimates, missed, strict=True)):
    colour = ORANGE if miss else BLUE
    axes.plot([k, k], [e.ci_low, e.ci_high], color=colour, lw=1.2)
    axes.plot(k, e.value, ".", color=colour, ms=4)
axes.axhline(truth, color="black", lw=0.8)
axes.set(xlabel="batch, in order of its estimate", ylabel="ΔH, nats per token")
axes.set_title(f"{100 - sum(missed)} of 100 intervals hold the truth", loc="left")
plt.show()
