"""A region of real processes that knows its callers by tokens, for the tests that ask it as every role.

Is: tenants, namespaces, one topic, roles and their grants, and questions over HTTP. Isn't: the tables of what is to be
answered (`rights_table.txt` of each face).

    shop/live/orders   boss administers shop; reader may consume, writer produce there
    other/live         stranger administers other, and nothing else
    house/main         keeper administers house; the namespace of Kafka's listener
    guest              has no grant anywhere; root is a super user
"""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.region_node.live import until
from tests.region_node.region_processes import Region
from tests.region_node.security.authentication.issuer import SECRET, secret_token

ROLES = {"g": "guest", "o": "stranger", "c": "reader", "p": "writer", "t": "boss", "l": "keeper", "s": "root"}
"""Letter -> role; `n`, nobody, brings no token."""
STATE = (
    "/admin/v2/clusters/us",
    "/admin/v2/tenants/shop",
    "/admin/v2/tenants/other",
    "/admin/v2/namespaces/shop/live",
    "/admin/v2/namespaces/shop/live/permissions",
    "/heliograph/v1/policies/shop/live",
    "/heliograph/v1/policies/persistent/shop/live/orders",
    "/admin/v2/persistent/shop/live/orders/properties",
    "/admin/v2/persistent/shop/live/orders/permissions",
    "/admin/v2/persistent/shop/live/orders/subscription/s/properties",
)


class Guarded(Region):
    """One connection for HTTP, and paths go out as they are written."""

    connection: http.client.HTTPConnection | None = None
    tokens: dict[str, str]

    def settings(self, node: str, roles: list[str], **sections: Any) -> dict[str, Any]:
        made = super().settings(node, roles, **sections)
        if "broker" in roles:
            (self.folder / "secret").write_bytes(SECRET)
            made["security"] = {
                "authentication": ["token"],
                "authorization": True,
                "super_users": ["root"],
                "allowed_urls": ["127.0.0.0/8"],
                "tokens": [{"algorithms": ["HS256"], "secret_file": str(self.folder / "secret")}],
            }
        return made

    def port(self, face: str) -> int:
        return self.processes["us-broker-0"].ports[face]

    def ask(self, letter: str, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        if self.connection is None:
            self.connection = http.client.HTTPConnection(self.admin_url().removeprefix("http://"), timeout=60)
        headers = {"Content-Type": "application/json"}
        if letter != "n":
            headers["Authorization"] = f"Bearer {self.tokens[letter]}"
        self.connection.request(method, path, None if body is None else json.dumps(body).encode(), headers)
        answer = self.connection.getresponse()
        text = answer.read()
        return answer.status, json.loads(text) if text[:1] in (b"{", b"[") else text

    def state(self) -> dict[str, Any]:
        """What a call that was refused must not have changed."""
        found = {path: self.ask("s", "GET", path) for path in STATE}
        assert {status for status, _ in found.values()} == {200}, found
        return found


@contextmanager
def guarded_region(folder: Path) -> Iterator[Guarded]:
    with Guarded(folder) as region:
        until_s = int(time.time()) + 86_400
        region.tokens = {one: secret_token(sub=role, exp=until_s).decode() for one, role in ROLES.items()}
        kafka = {"port": 0, "namespace": "house/main", "rebalance_delay_ms": 0}
        region.start(bookies=2, brokers=1, kafka=kafka)
        urls = {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()}
        ready: tuple[tuple[str, str, Any], ...] = (
            ("s", "/admin/v2/clusters/us", urls),
            ("s", "/admin/v2/tenants/shop", {"adminRoles": ["boss"], "allowedClusters": ["us"]}),
            ("s", "/admin/v2/tenants/other", {"adminRoles": ["stranger"], "allowedClusters": ["us"]}),
            ("s", "/admin/v2/tenants/house", {"adminRoles": ["keeper"], "allowedClusters": ["us"]}),
            ("t", "/admin/v2/namespaces/shop/live", None),
            ("o", "/admin/v2/namespaces/other/live", None),
            ("l", "/admin/v2/namespaces/house/main", None),
            ("t", "/admin/v2/persistent/shop/live/orders", None),
            ("o", "/admin/v2/persistent/other/live/orders", None),
            ("l", "/admin/v2/persistent/house/main/lobby", None),
            ("t", "/admin/v2/persistent/shop/live/orders/subscription/s", None),
        )
        for letter, path, body in ready:
            assert region.ask(letter, "PUT", path, body)[0] == 204, path
        grants = "/admin/v2/namespaces/shop/live/permissions"
        for letter, action in (("c", "consume"), ("p", "produce")):
            assert region.ask("t", "POST", f"{grants}/{ROLES[letter]}", [action])[0] == 204
        until(lambda: len(region.ask("t", "GET", grants)[1]) == 2)
        yield region
