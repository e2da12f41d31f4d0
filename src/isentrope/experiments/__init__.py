"""What a verb of the command line does: configuration, run folders, measurements."""
