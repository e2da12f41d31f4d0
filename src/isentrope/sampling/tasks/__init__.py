"""Tasks: prompts with a reward for the response."""
