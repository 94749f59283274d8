"""Parts that wrap or combine other parts."""
