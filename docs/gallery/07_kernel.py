# %% [markdown]
# # Which responses move which others
#
# The Fisher kernel of an update batch as cosines between the gradients of its responses, ordered
# by prompt and within a prompt by reward. The squares on the diagonal are the eight responses to
# one prompt. A step on one response moves the others in its square, up or down, and all other
# responses a little.

# %%
import matplotlib.pyplot as plt
import numpy as np
from tiny import tiny_policy, update_batch

import isentrope as ise

policy = tiny_policy()
U = update_batch(policy, 10, seed=1)
order = np.lexsort((U.rewards.numpy(), U.prompt_index.numpy()))
K = ise.fisher_kernel(policy, U.select(order))
structure = K.structure()

# %%
length = K.matrix.diagonal().sqrt()
cosines = (K.matrix / length[:, None] / length).numpy()
figure, axes = plt.subplots(figsize=(5.6, 4.8), layout="constrained")
image = axes.imshow(cosines, cmap="RdBu_r", vmin=-1, vmax=1)
axes.set_xticks(range(0, 80, 8), [f"prompt {p}" for p in range(10)], rotation=90, fontsize=7)
axes.set_yticks(range(0, 80, 8), [f"prompt {p}" for p in range(10)], fontsize=7)
axes.spines[["left", "bottom"]].set_visible(False)
figure.colorbar(image, label="cosine of two responses' gradients")
same, other = structure["same_prompt"].rms_cosine, structure["cross_prompt"].rms_cosine
axes.set_title(
    f"rms cosine: same prompt {same.value:.2f} ± {same.se:.2f}, "
    f"other prompts {other.value:.2f} ± {other.se:.2f}",
    loc="left",
    fontsize=9,
)
plt.show()
