"""Per-sequence gradients: formed by hooks, stored, multiplied and sketched (T7)."""
