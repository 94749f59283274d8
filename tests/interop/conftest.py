"""The peer library, where it is installed."""

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Imported here and not above, so that a machine without it skips these tests one by one, and says why."""
    module: ModuleType = pytest.importorskip("transformers", reason="the folders are written by transformers")
    module.utils.logging.set_verbosity_error()
    module.utils.logging.disable_progress_bar()
    return module
