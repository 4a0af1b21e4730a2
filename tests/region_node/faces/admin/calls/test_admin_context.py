"""Where a request is sent on to, when another broker owns its topic."""

from __future__ import annotations

import ssl
from types import SimpleNamespace
from typing import Any, cast

import pytest
from aiohttp.test_utils import make_mocked_request

from heliograph.model.errors import MetadataUnavailable, Unauthorized
from region_node.faces.admin.calls.admin_context import Admin, OwnedElsewhere
from region_node.placement.ownership.broker_records import HTTPS, BrokerRecord

PLAIN = make_mocked_request("GET", "/admin/v2/persistent/a/b/c/stats?x=1")
SECURE = make_mocked_request(
    "GET", "/admin/v2/persistent/a/b/c/stats?x=1", sslcontext=ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
)


def test_what_came_by_tls_goes_on_by_tls_alone() -> None:
    both = BrokerRecord("b2", {HTTPS: "https://b2:8443"}, admin_url="http://b2:8080")
    assert OwnedElsewhere(both).location(PLAIN) == "http://b2:8080/admin/v2/persistent/a/b/c/stats?x=1"
    assert OwnedElsewhere(both).location(SECURE) == "https://b2:8443/admin/v2/persistent/a/b/c/stats?x=1"
    plain = BrokerRecord("b2", {}, admin_url="http://b2:8080")
    with pytest.raises(MetadataUnavailable, match=r"no HTTPS port.*set broker.admin_tls_port"):
        OwnedElsewhere(plain).location(SECURE)


def test_clusters_that_are_not_there_are_refused_whatever_their_names() -> None:
    """No line of an answer's head may be broken by one."""
    nowhere = cast(Any, SimpleNamespace(view=SimpleNamespace(region=lambda name: None)))
    with pytest.raises(Unauthorized, match="Invalid cluster id: a\nb, c"):
        Admin.regions(nowhere, ["a\nb", "c"])
