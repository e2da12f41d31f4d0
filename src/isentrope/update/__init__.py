"""What a step is: the direction of one optimizer step, and its additive parts (T5)."""
