"""The names of the files and folders inside a run folder (docs/formats.md)."""

RECIPE, SOURCES, ENVIRONMENT = "recipe.toml", "sources.json", "environment.json"
METRICS, EVENTS, TOKENIZER = "metrics.jsonl", "events.log", "tokenizer.json"
CHECKPOINTS, SAMPLES = "checkpoints", "samples"
