# %% [markdown]
# # Published proxies against the measurement
#
# Proxies predict a token's influence on entropy from its log-probability, entropy and advantage
# alone. Each is compared with the measured δH of the same tokens. They have the sign and part of
# the order. They do not include how one context's update moves another, which is the scatter.

# %%
import matplotlib.pyplot as plt
import torch
from tiny import BLUE, evaluation_batch, sgd, tiny_policy, update_batch

import isentrope as ise
from isentrope.attribution.proxies.audit import AuditOptions, audit
from isentrope.attribution.proxies.proxies import token_proxies

policy = tiny_policy()
E, U = evaluation_batch(policy, 512, seed=0), update_batch(policy, 24, seed=1)
step = ise.optimizer_step(policy, U, sgd(policy), objective="dr_grpo")
measured = torch.nn.utils.rnn.pad_sequence(ise.influence(policy, E, U, step).per_token, True)
scores = ise.score(policy, U)
proxies = token_proxies(scores, U.advantages)
found = audit(measured, scores.mask, U.prompt_index, proxies, options=AuditOptions(seed=0))

# %%
titles = {
    "token_covariance": ("token covariance", "−(s − s̄)(A − Ā), nats × reward"),
    "discriminator": ("S*", "S*, nats"),
    "advantage": ("A alone", "A, reward"),
}
figure, panels = plt.subplots(1, 3, figsize=(9, 3.2), sharey=True, layout="constrained")
for axes, (name, (title, label)) in zip(panels, titles.items(), strict=True):
    axes.plot(proxies[name][scores.mask], measured[scores.mask], ".", color=BLUE, ms=3, alpha=0.5)
    rank = found[name]["spearman"]
    axes.set_title(f"{title}: ρ = {rank.value:.2f} ± {rank.se:.2f}", loc="left", fontsize=10)
    axes.set_xlabel(label)
panels[0].set_ylabel("measured δH, nats per token per η")
plt.show()
