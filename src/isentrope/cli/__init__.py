"""The command line: a table of verbs (`commands`), how each kind is run, and what it prints."""
