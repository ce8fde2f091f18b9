"""The pytest plugin of lpverify: the fixture ``assert_lossless``. Nothing else is loaded until a test asks for it."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.fixture(scope="session")
def assert_lossless() -> Any:
    """`lpverify.testing.assert_lossless`: assert that a verifier is lossless."""
    from lpverify.testing import assert_lossless

    return assert_lossless
