"""Pictures of kinds, measured on small values of them: what a mask lets through, a position adds, a norm averages."""
