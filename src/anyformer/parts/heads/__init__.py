"""What stands behind the last layer."""
