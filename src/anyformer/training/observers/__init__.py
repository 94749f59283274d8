"""Observers of a run: callables that receive every `Step`, to log, evaluate, sample or save."""
