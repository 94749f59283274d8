"""Who may look at whom."""
