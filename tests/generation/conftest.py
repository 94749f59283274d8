"""The peer library, where it is installed."""

from types import ModuleType

import pytest


@pytest.fixture(scope="session")
def transformers() -> ModuleType:
    """Imported here and not above, so that a machine without it skips these tests one by one, and says why."""
    return pytest.importorskip("transformers", reason="the peers need Hugging Face transformers")
