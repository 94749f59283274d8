"""`python -m anyformer`."""

import sys

from anyformer.cli.main import main

sys.exit(main())
