"""What a step is: the direction one optimizer step really takes, and its additive parts (T5)."""
