"""The packings, one file each: how the texts of a split are laid out in batches."""
