"""Fixtures of tests with a browser: they are skipped where there is none, unless one is required."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest

from tests.web.served import browser as opened
from tests.web.served import why_no_browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    why = why_no_browser()
    if why is not None:
        if os.environ.get("QUEUEHINT_REQUIRE_CHROMIUM") == "1":
            pytest.fail(f"QUEUEHINT_REQUIRE_CHROMIUM=1, and {why}", pytrace=False)
        pytest.skip(why)
    with opened() as found:
        yield found
