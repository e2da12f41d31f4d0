"""What a policy is: a causal LM as a function of its trainable parameters."""
