"""What each verb of the command line does, from a configuration to a run folder."""
