"""The entry point of `anyformer` and `python -m anyformer`, which also answers a Ctrl-C while the program is loaded."""

import sys

from anyformer.errors import INTERRUPTED

try:
    from anyformer.cli.main import enter
except KeyboardInterrupt:
    print("interrupted", file=sys.stderr)
    sys.exit(INTERRUPTED)

__all__ = ["enter"]

if __name__ == "__main__":
    enter()
