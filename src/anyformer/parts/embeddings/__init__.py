"""How token ids become vectors."""
