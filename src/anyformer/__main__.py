"""`python -m anyformer`."""

from anyformer.cli.main import enter

enter()
