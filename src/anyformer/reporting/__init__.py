"""Reports of runs, studies, presets and claims. Imports nothing here, so that `runs` starts without torch."""
