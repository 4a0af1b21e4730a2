"""Who calls over HTTP is known by the address that it calls from, too: an ACL may name it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from region_node.faces.admin.calls.auth_middleware import _identify
from region_node.security.authentication.principal import Credentials, Principal


class Tokens:
    def of_header(self, header: str, certificate: Any, host: str) -> Credentials:
        return Credentials(method="token", data=header.encode())

    async def identify(self, credentials: Credentials, original: str) -> Principal:
        return Principal(role=credentials.data.decode())


@pytest.mark.parametrize(
    ("remote", "host"), [("10.0.0.1", "10.0.0.1"), ("::ffff:10.0.0.1", "10.0.0.1"), ("::1", "::1"), (None, "")]
)
def test_whoever_calls_is_known_by_its_address(remote: str | None, host: str) -> None:
    request: Any = SimpleNamespace(transport=None, headers={"Authorization": "ann"}, remote=remote)
    security: Any = SimpleNamespace(authentication=Tokens())
    found = asyncio.run(_identify(security, request))
    assert (found.role, found.host) == ("ann", host)
