"""A plugin of pytest for `make quick`: no test is begun after QUICK_UNTIL, in seconds of the monotonic clock.

Each test that is left out is a byte in the file QUICK_LEFT.
"""

from __future__ import annotations

import os
import time

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> bool | None:
    if time.monotonic() < float(os.environ["QUICK_UNTIL"]):
        return None
    with open(os.environ["QUICK_LEFT"], "ab") as left:
        left.write(b".")
    return True
