"""Parts made of parts."""
