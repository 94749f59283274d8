"""What mixes tokens."""
