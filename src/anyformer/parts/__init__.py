"""Every variant, one file each. Nothing here is imported by name: a kind is found by its class."""
