"""The verbs of the command line: one dataclass each, whose fields are its options."""
