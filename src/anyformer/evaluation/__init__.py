"""A model in use, and how good it is: writing, filling, classifying, embedding, searching, and the scores of each."""
