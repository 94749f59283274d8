"""The peer library, where it is installed."""

from tests.interop.conftest import transformers as transformers
