# %% [markdown]
# # pass@k and its interval
#
# 64 prompts with widely different chances of a correct answer, 16 responses to each. pass@k for k
# up to 16 from one set of counts, with intervals over prompts, against the true curve. Errors
# come from the prompts: more responses to the same prompts would hardly narrow them.

# %%
import matplotlib.pyplot as plt
import numpy as np
from tiny import BLUE

import isentrope as ise

rng = np.random.default_rng(0)
chance = rng.beta(0.4, 1.0, size=64)
right = rng.binomial(16, chance)

# %%
tries = np.arange(1, 17)
estimates = [ise.pass_at_k(16, right, int(k)) for k in tries]
population = rng.beta(0.4, 1.0, size=200_000)
truth = [(1 - (1 - population) ** k).mean() for k in tries]

figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
band = [e.ci_low for e in estimates], [e.ci_high for e in estimates]
axes.fill_between(tries, *band, color=BLUE, alpha=0.2, lw=0, label="95 % interval")
axes.plot(tries, [e.value for e in estimates], "o-", color=BLUE, ms=4, label="64 prompts × 16")
axes.plot(tries, truth, color="black", lw=1, ls="--", label="all prompts")
axes.set(xlabel="k", ylabel="pass@k", ylim=(0, 1))
axes.legend(frameon=False)
plt.show()
