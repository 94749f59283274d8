"""A training corpus of prose and code from Debian packages: `python -m tools.corpus --help`."""
