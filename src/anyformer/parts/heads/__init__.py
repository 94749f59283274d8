"""What follows the last layer."""
