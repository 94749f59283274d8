"""What verbs print, and the options that they share."""
