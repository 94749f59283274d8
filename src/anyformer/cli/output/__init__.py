"""Output of the verbs, and the options that they share."""
