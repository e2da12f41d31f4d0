# %% [markdown]
# # Who moved the entropy
#
# Every token of an update batch by its log-probability and its influence δH on the entropy of
# held-out prompts, per unit learning rate. Colour is the sign of the advantage. Rewarding a
# likely token or punishing an unlikely one sharpens the policy; the opposites soften it. The step
# is their sum, and tokens near zero are most of them.

# %%
import matplotlib.pyplot as plt
from tiny import BLUE, ORANGE, evaluation_batch, sgd, tiny_policy, update_batch

import isentrope as ise

policy = tiny_policy()
E, U = evaluation_batch(policy, 512, seed=0), update_batch(policy, 24, seed=1)
step = ise.optimizer_step(policy, U, sgd(policy), objective="dr_grpo")
table = ise.influence(policy, E, U, step)
tokens = table.to_frame("tokens")

# %%
figure, axes = plt.subplots(figsize=(6.4, 4), layout="constrained")
signs = ((1, BLUE, "o", "rewarded, A > 0"), (-1, ORANGE, "v", "punished, A < 0"))
for sign, colour, shape, label in signs:
    part = tokens[sign * tokens.advantage > 0]
    bars = {"fmt": shape, "ms": 2.5, "lw": 0.5, "color": colour, "alpha": 0.6, "label": label}
    axes.errorbar(part.s, part.delta_h, part.delta_h_se, **bars)
axes.axhline(0, color="black", lw=0.8)
axes.set(xlabel="log-probability of the token, nats", ylabel="δH, nats per token per η")
axes.set_title(f"sum {table.total.value:.3g} ± {table.total.se:.1g}", loc="left")
axes.legend(frameon=False)
plt.show()
