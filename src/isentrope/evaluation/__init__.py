"""What a policy can do: pass@k and what goes with it."""
