"""Which tests have the card to themselves."""

import os

import pytest


@pytest.fixture
def card_alone() -> bool:
    """Whether no other test uses the card at the same time: what is free of its memory says nothing otherwise."""
    return os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1") == "1"
