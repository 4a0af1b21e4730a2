"""Who a broker is where it asks other regions by itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from heliograph.model.errors import ConfigError
from region_node.faces.admin.dr.drill_schedules import OwnCredentials
from region_node.process.settings import BrokerSettings


def test_the_token_is_read_each_time_as_tokens_are_renewed(tmp_path: Path) -> None:
    file = tmp_path / "token"
    own = OwnCredentials(BrokerSettings(drill_token_file=str(file)).drill_token_file)
    for token in ("first", "second"):
        file.write_text(f"{token}\n")
        assert own.headers == {"Authorization": f"Bearer {token}"}
    file.unlink()
    with pytest.raises(ConfigError, match=r"broker\.drill_token_file"):
        own.headers  # noqa: B018
    assert OwnCredentials(BrokerSettings().drill_token_file).headers == {}
