"""The command line: one thin file a verb, each adding itself to `main.app`."""
