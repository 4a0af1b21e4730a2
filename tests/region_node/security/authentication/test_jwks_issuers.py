"""A real issuer over HTTP: what is fetched, what is not, and the official client's OAuth2 flow against a real broker's
settings.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from region_node.security.authentication.jwks_issuers import fetch
from tests.region_node.security.authentication.issuer_server import Issuer


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


def test_a_document_is_fetched_whole_and_nothing_larger(issuer: Issuer) -> None:
    assert asyncio.run(fetch(f"{issuer.url}/keys")) == issuer.pages["/keys"][1]
    issuer.pages["/most"] = (200, b"x" * (256 << 10))
    issuer.pages["/more"] = (200, b"x" * ((256 << 10) + 1))
    assert len(asyncio.run(fetch(f"{issuer.url}/most"))) == 256 << 10
    with pytest.raises(OSError, match="more than"):
        asyncio.run(fetch(f"{issuer.url}/more"))


def test_a_redirect_is_not_followed_and_an_error_is_one(issuer: Issuer) -> None:
    issuer.pages["/elsewhere"] = (302, b"")
    for path in ("/elsewhere", "/nothing"):
        with pytest.raises(OSError, match="answered"):
            asyncio.run(fetch(issuer.url + path))
    with pytest.raises(OSError):
        asyncio.run(fetch("http://127.0.0.1:1/keys"))
