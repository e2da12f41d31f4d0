# %% [markdown]
# # First and second order, and their remainders
#
# ΔH(η) of a tiny transformer along one direction, exactly, by listing every response. First order
# leaves an error that grows as η², first and second together one that grows as η³: on logarithmic
# axes the remainders are straight lines of slope 2 and 3. The same holds on a *sample* of 64
# responses, point by point, as ΔH, δH₁ and δH₂ are read from one function of it (T3).

# %%
import matplotlib.pyplot as plt
import numpy as np
import torch
from tiny import BLUE, GREEN, GREY, ORANGE, tiny_policy

import isentrope as ise

policy = tiny_policy()
exact = ise.oracle.enumerate_policy(policy, [[1, 2], [3]], max_new_tokens=4)
generator = torch.Generator().manual_seed(1)
v = {
    n: 0.1 * torch.randn(p.shape, generator=generator, dtype=torch.float64)
    for n, p in policy.theta.items()
}
first, second = exact.derivatives(v)

# %%
rates = np.geomspace(0.003, 1, 16)
change = np.array([exact.entropy_change(v, float(eta)) for eta in rates])
sampled = ise.entropy_change(policy, exact.sample(64, seed=0), v, [float(eta) for eta in rates])

figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.6), layout="constrained")
left.plot(rates, change, "o", color=BLUE, label="exact")
left.plot(rates, first * rates, color=ORANGE, label="first order")
left.plot(rates, first * rates + second * rates**2, "--", color=GREEN, label="first + second")
left.set(xlabel="η", ylabel="ΔH, nats per token")
left.legend(frameon=False)

right.loglog(rates, abs(change - first * rates), "o", color=ORANGE, label="after first order")
both = abs(change - first * rates - second * rates**2)
right.loglog(rates, both, "s", color=GREEN, label="after second order")
residuals = [abs(p.residual.value) for p in sampled.points]
right.loglog(rates, residuals, "x", color=GREY, label="the same on 64 responses")
for power, start in ((2, abs(change - first * rates)[0]), (3, both[0])):
    right.loglog(rates, start * (rates / rates[0]) ** power, ":", color="black", lw=0.8)
right.set(xlabel="η", ylabel="|remainder|, nats per token")
right.legend(frameon=False)
plt.show()
