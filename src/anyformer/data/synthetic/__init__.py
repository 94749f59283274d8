"""Tasks made by a rule: every answer, the chance level, and how far apart the clue and the answer are, are known."""
