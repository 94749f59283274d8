"""The command line: one file per verb, found by its name; what starts with an underscore is shared by verbs."""
