"""Per-sequence gradients: formed by hooks, stored and multiplied (T7)."""
