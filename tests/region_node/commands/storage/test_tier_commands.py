"""What `heliograph tier offload` makes of its options, before any region is asked."""

from __future__ import annotations

import pytest
import typer
from typer.testing import CliRunner

from heliograph.model.errors import ConfigError
from region_node.commands.storage import tier_commands

NOBODY = "http://127.0.0.1:1"


@pytest.mark.parametrize("before", ["12", "12:", ":0", "a:0", "12:b", "12:-1", "-1:0", "12:0:1", ":"])
def test_a_position_that_is_none_is_refused_with_what_is_expected(before: str) -> None:
    with pytest.raises(ConfigError, match="expected ledger:entry, such as 12:0"):
        tier_commands.offload("persistent://public/default/t", before, admin=NOBODY)


def test_a_position_goes_to_the_region_as_it_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    class Region:
        def put(self, path: str, body: object, **query: object) -> None:
            asked.append((path, body, query))

    monkeypatch.setattr(tier_commands, "_region", lambda admin, token: Region())
    app = typer.Typer()
    tier_commands.register(app)
    done = CliRunner().invoke(app, ["tier", "offload", "persistent://public/default/t", "--before", "12:7", "--now"])
    assert done.exit_code == 0, done.output
    ((path, body, query),) = asked
    assert path.endswith("/persistent/public/default/t/offload") and query == {"rollOver": True}
    assert body == {"ledgerId": 12, "entryId": 7, "partitionIndex": -1}
