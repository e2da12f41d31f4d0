# %% [markdown]
# # Entropy collapses on three arms
#
# One softmax over three arms, rewards 1, 0.8 and 0, and exact gradient ascent on the expected
# reward. Nothing is sampled. The entropy falls although the objective does not contain it, and
# mostly *after* the reward has been reached: the policy keeps increasing its confidence. A start
# that is far from uniform first gains entropy, while it leaves a bad arm.

# %%
import matplotlib.pyplot as plt
import torch
from tiny import BLUE, GREEN, ORANGE

import isentrope as ise

rewards = torch.tensor([1.0, 0.8, 0.0], dtype=torch.float64)
table = ise.oracle.TabularPolicy(vocabulary=3, max_new_tokens=1)
policy = ise.Policy(table, eos_token_id=0, pad_token_id=0)
exact = ise.oracle.enumerate_policy(policy, [[1]], max_new_tokens=1)
(name,) = policy.names
prompt = [1]
row = prompt[0] + 1  # of the table: the logits that follow the prompt


# %%
def ascend(start: list[float], steps: int = 150, rate: float = 0.5):
    """Expected reward and entropy along exact gradient ascent."""
    with torch.no_grad():
        table.table[row] = torch.tensor(start, dtype=torch.float64)
    path = []
    for _ in range(steps):
        pi = exact.probabilities()
        value = float(pi @ rewards)
        path.append((value, exact.entropy()))
        with torch.no_grad():
            table.table[row] += rate * pi * (rewards - value)  # ∂E[r]/∂logits of a softmax
    return torch.tensor(path).T


starts = {"uniform": [0, 0, 0], "likes the second arm": [0, 2, 0], "likes the wrong arm": [0, 0, 3]}
figure, (left, right) = plt.subplots(1, 2, figsize=(8, 3.4), layout="constrained")
styles = ((BLUE, "-"), (GREEN, "--"), (ORANGE, "-."))
for (label, start), (colour, dashes) in zip(starts.items(), styles, strict=True):
    reward, entropy = ascend(start)
    left.plot(entropy, dashes, color=colour, label=label)
    right.plot(reward, entropy, dashes, color=colour)
left.set(xlabel="step", ylabel="entropy, nats", ylim=0)
right.set(xlabel="expected reward", ylabel="entropy, nats", ylim=0)
left.legend(frameon=False, title="start")
plt.show()
