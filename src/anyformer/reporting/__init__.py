"""Pages of a run, for people. Imports nothing by itself: `runs` lists folders without waiting for torch."""
