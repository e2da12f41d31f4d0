"""Evaluation of a policy on a task: pass@k and related metrics."""
