"""t ~ π and A(t): responses drawn from a policy, their rewards, their advantages, and the batches.

`draw` draws responses and `generate` makes rollouts of them; `advantages` attaches rewards and
advantages; `batches` holds the rules of the evaluation batch E and the update batch U; `tasks`
holds prompts with rewards.
"""
