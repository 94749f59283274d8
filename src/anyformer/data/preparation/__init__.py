"""From records to token shards on disk."""
