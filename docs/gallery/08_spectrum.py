# %% [markdown]
# # In how many directions does a batch push?
#
# Eigenvalues of the kernel of 128 responses against what random gradients would give: with as
# many dimensions as there are parameters, with the dimension that fits the kernel's own
# cross-prompt cosines, and random directions with the observed norms. Eigenvalues above the
# largest of the last are shared directions: many responses push the same way. The other two bands
# are for comparison: unlike norms alone put eigenvalues above them.

# %%
import matplotlib.pyplot as plt
from tiny import BLUE, GREEN, GREY, tiny_policy, update_batch

import isentrope as ise

policy = tiny_policy()
K = ise.fisher_kernel(policy, update_batch(policy, 16, seed=1))
spectrum = K.spectrum(seed=0)

# %%
figure, axes = plt.subplots(figsize=(6.4, 3.8), layout="constrained")
values = spectrum.eigenvalues.clamp_min(1e-6 * spectrum.eigenvalues[0])
axes.semilogy(range(1, len(values) + 1), values, ".", color=BLUE, label="measured")
for null, colour in zip(spectrum.nulls, (GREY, GREEN, "#CC79A7"), strict=False):
    low = max(null.lower, float(values[-1]))
    label = null.name if null.above is None else f"{null.name}: {null.above} above"
    axes.axhspan(low, null.upper, color=colour, alpha=0.2, label=label, lw=0)
rank = spectrum.effective_rank
axes.set_title(f"effective rank {rank.value:.1f} ± {rank.se:.1f} of {len(values)}", loc="left")
axes.set(xlabel="rank of the eigenvalue", ylabel="eigenvalue, nats per unit of η·w·A")
axes.legend(frameon=False)
plt.show()
