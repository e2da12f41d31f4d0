"""What a verb takes, before anything runs: memory and time, from shapes alone."""
