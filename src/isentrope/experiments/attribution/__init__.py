"""`isentrope influence | kernel | noise | audit`: who moved the entropy of a checkpoint."""
