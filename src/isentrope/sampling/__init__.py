"""t ~ π and A(t): responses drawn from a policy, their rewards, their advantages, and the batches.

`generate.sample` draws responses; `advantages` attaches rewards and advantages; `batches` holds
the rules of the evaluation batch E and the update batch U; `tasks` holds prompts with rewards.
"""
