"""The command line: one file per verb in `verbs`, what verbs print and share in `output`."""
