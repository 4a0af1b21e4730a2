"""Any bytes and any requests: a connection answers or is closed, and nobody else notices. `make fuzz` runs many more."""

from __future__ import annotations

import pytest

from tests.kafka.fuzz import run


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_nothing_that_a_client_sends_harms_another(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    run(seed)
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []
