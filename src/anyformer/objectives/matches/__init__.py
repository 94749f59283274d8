"""One file for each thing that a student can copy from the layers of its teacher. A new one is a new file."""
