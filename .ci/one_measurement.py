"""One measurement with the core dependencies alone: python .ci/one_measurement.py

A small policy with random weights, the step that a fresh AdamW would take on one update batch, and
how that step changes the entropy. The prediction is compared with the measurement.
"""

import torch

import isentrope as ise
from isentrope.training.models import build_toy_policy

RATE, LENGTH = 1e-4, 12

policy = build_toy_policy(seed=0).convert("float64")
optimizer = torch.optim.AdamW(policy.model.parameters(), lr=RATE, weight_decay=0.0)

train, test = (ise.load_task("addition", split) for split in ("train", "test"))
E = ise.sample(policy, test.prompts, n=32, max_new_tokens=LENGTH, seed=0)
U = ise.sample(policy, train.prompts, n=4, group_size=4, max_new_tokens=LENGTH, seed=1)
U = U.with_columns(rewards=U.token_counts.double())  # a policy this bad is never correct
U = ise.with_advantages(U, "dr_grpo")

step = ise.optimizer_step(policy, U, optimizer, objective="dr_grpo")
sweep = ise.entropy_change(policy, E, step.direction, etas=[RATE])
(point,) = sweep.points
assert sweep.first_order is not None
assert sweep.second_order is not None
predicted = RATE * sweep.first_order.value + RATE**2 * sweep.second_order.value
print(
    f"entropy {sweep.entropy.value:.4f}, change {point.change.value:+.3e} ± {point.change.se:.1e}"
)
print(f"predicted to second order {predicted:+.3e}, verdict {point.verdict}")
if not abs(point.change.value - predicted) < 0.05 * abs(predicted):
    raise SystemExit("The prediction and the measurement differ: this installation is not sound.")
