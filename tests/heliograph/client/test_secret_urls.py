"""A secret goes by TLS, or stays on the machine."""

from __future__ import annotations

import pytest

from heliograph.client.secret_urls import secret_may_go_to


@pytest.mark.parametrize(
    ("url", "may"),
    (
        ("https://eu.example:8443/x", True),
        ("http://127.0.0.1:8080", True),
        ("http://127.0.0.2:8080", True),
        ("http://[::1]:8080", True),
        ("http://localhost:8080", True),
        ("http://eu.example:8080", False),
        ("http://10.0.0.1:8080", False),
        ("http://127.0.0.1.eu.example", False),
        ("http://localhost.eu.example", False),
        ("http://127.0.0.1@eu.example", False),
        ("http://2130706433", False),
        ("ftp://127.0.0.1", False),
        ("https://", False),
        ("", False),
    ),
)
def test_by_tls_or_on_this_machine(url: str, may: bool) -> None:
    assert secret_may_go_to(url) is may


def test_what_is_no_url() -> None:
    with pytest.raises(ValueError):
        secret_may_go_to("http://[::1")
