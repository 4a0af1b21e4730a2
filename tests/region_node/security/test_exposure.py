"""Who may do everything at a broker's address."""

from __future__ import annotations

import pytest

from heliograph.model.errors import ConfigError
from region_node.security.exposure import Exposure
from region_node.security.settings import SecuritySettings


@pytest.mark.parametrize(
    ("given", "open_to_all"),
    [
        ({}, True),
        ({"authentication": ("tls",)}, False),
        ({"authentication": ("tls",), "anonymous_role": "guest"}, True),
        ({"authorization": True, "super_users": ("root",), "anonymous_role": "guest"}, False),
        ({"authorization": True, "super_users": ("guest",), "anonymous_role": "guest"}, True),
    ],
)
def test_who_presents_nothing_may_do_everything_unless_somebody_is_asked_or_rights_are_checked(
    given: dict[str, object], open_to_all: bool
) -> None:
    exposure = SecuritySettings(**given).exposure  # type: ignore[arg-type]
    assert exposure == Exposure(**given)  # type: ignore[arg-type]
    assert exposure.to_all("10.0.0.1") is open_to_all


@pytest.mark.parametrize(
    ("bind", "beyond"),
    [
        ("127.0.0.1", False),
        ("127.0.1.9", False),
        ("::1", False),
        ("localhost", False),
        ("0.0.0.0", True),
        ("::", True),
        ("10.0.0.1", True),
        ("broker.example", True),
    ],
)
def test_addresses_of_this_machine_alone_need_no_word(bind: str, beyond: bool) -> None:
    assert Exposure().to_all(bind) is beyond
    Exposure(allow_insecure=True).check("bind", bind)
    if beyond:
        with pytest.raises(ConfigError, match=r"set security\.authentication .* or security\.allow_insecure"):
            Exposure().check("bind", bind)
    else:
        Exposure().check("bind", bind)
