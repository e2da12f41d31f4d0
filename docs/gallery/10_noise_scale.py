# %% [markdown]
# # How many prompts does a step need?
#
# B_simple is the batch at which the gradient has as much noise as signal. It is estimated from
# growing batches of prompt groups, with Fieller's interval from 32 groups on. A small batch cannot
# bound it from above: the arrow has no upper end, because the signal is within its error. The
# estimate itself cannot be trusted until the interval has an upper end.

# %%
import math

import matplotlib.pyplot as plt
import torch
from tiny import BLUE, tiny_policy, update_batch

import isentrope as ise

policy = tiny_policy()
everything = update_batch(policy, 128, seed=1)
sizes = [8, 16, 32, 64, 128]
scales = []
for size in sizes:
    some = everything.select(torch.nonzero(everything.prompt_index < size).flatten())
    scales.append(ise.noise_scale(policy, some).b_simple)

# %%
figure, axes = plt.subplots(figsize=(6, 3.6), layout="constrained")
ends = [b.ci_high for b in scales if math.isfinite(b.ci_high)]
top = 3 * max([*ends, *(b.value for b in scales)])
lowest = 0.5 * min(x for b in scales for x in (b.value, b.ci_low) if x > 0)
for size, b in zip(sizes, scales, strict=True):
    axes.plot(size, b.value, "o", color=BLUE)
    if math.isnan(b.ci_low):
        continue
    open_end = not math.isfinite(b.ci_high)
    high = top if open_end else b.ci_high
    style = "-|>" if open_end else "-"
    axes.annotate(
        "",
        (size, high),
        (size, max(b.ci_low, lowest)),
        arrowprops={"arrowstyle": style, "color": BLUE},
    )
axes.set(xscale="log", yscale="log", ylim=(lowest, 1.3 * top))
axes.set_xticks(sizes, sizes)
axes.minorticks_off()
axes.set(xlabel="prompt groups in the batch", ylabel="B_simple, prompts")
plt.show()
