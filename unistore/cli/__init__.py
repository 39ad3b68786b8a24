"""The command line: one file per command. Heavy imports are inside the commands' bodies."""
