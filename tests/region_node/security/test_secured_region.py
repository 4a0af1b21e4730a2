"""A region of real processes with mutual TLS inside, tokens, passwords, certificates, and rights: the official client
and the admin interface.
"""

from __future__ import annotations

import asyncio
import base64
import json
import re
import socket
import ssl
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pulsar
import pytest
from aiohttp import ClientSession, CookieJar

from geo_tests.wan.instance import PROGRAM, eventually
from region_node.security.certificate_authority import ensure_certificates
from tests.heliograph.cli.signing_in.local_issuer import TestIssuer
from tests.region_node.live import until
from tests.region_node.region_processes import Process, Region
from tests.region_node.security import inside_calls
from tests.region_node.security.authentication.issuer import SECRET, secret_token
from tests.region_node.security.authentication.issuer_server import Issuer
from tests.region_node.security.authentication.password_lines import line

pytestmark = [pytest.mark.wan, pytest.mark.slow]

TOPICS = "/admin/v2/persistent/public/default"
GRANTS = "/admin/v2/namespaces/public/default/permissions"


def bearer(role: str) -> str:
    return f"Bearer {secret_token(sub=role, exp=int(time.time()) + 600).decode()}"


class Secured(Region):
    """Two brokers, two bookies, all with certificates of their own."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.tls = folder / "tls"
        ensure_certificates(self.tls, ["us"])
        (folder / "secret").write_bytes(SECRET)
        (folder / "users").write_text(line("ann", "password", "2y"))
        self.issuer = Issuer()
        self.people = TestIssuer()

    def settings(self, node: str, roles: list[str], **sections: Any) -> dict[str, Any]:
        names = ("broker", "bookie", "meta", "config", "replicator")
        files = {
            f"{n}_{part}": str(self.tls / f"{n}.us.{end}")
            for n in names
            for part, end in (("cert", "pem"), ("key", "key"))
        }
        made = super().settings(node, roles, **sections)
        server = {"server_cert": files["broker_cert"], "server_key": files["broker_key"]}
        made["tls"] = {"ca": str(self.tls / "ca.pem"), **files, **server, "internal": True, "reload_s": 0.5}
        if "broker" in roles:
            made["broker"] |= {"tls_port": 0, "admin_tls_port": 0}
            made["security"] = {
                "authentication": ["token", "basic", "tls"],
                "authorization": True,
                "super_users": ["root", "corp:alice"],
                "allowed_urls": ["127.0.0.0/8"],
                "tokens": [
                    {"algorithms": ["HS256"], "secret_file": str(self.folder / "secret")},
                    {
                        "algorithms": ["RS256"],
                        "issuer": self.issuer.url,
                        "audience": "heliograph",
                        "role_prefix": "idp:",
                    },
                    {
                        "algorithms": ["ES256"],
                        "issuer": self.people.url,
                        "audience": "heliograph",
                        "role_prefix": "corp:",
                        "console_client_id": "console",
                    },
                ],
                "basic_file": str(self.folder / "users"),
            }
        return made

    def url(self, broker: int = 0, *, tls: bool = True) -> str:
        ports = self.processes[f"us-broker-{broker}"].ports
        return f"pulsar+ssl://127.0.0.1:{ports['pulsar_tls']}" if tls else f"pulsar://127.0.0.1:{ports['pulsar']}"

    def rest(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        auth: str = "",
        broker: int = 0,
        url: str = "",
        context: Any = None,
    ) -> tuple[int, Any]:
        """Follows redirects, with the same credentials."""
        request = urllib.request.Request(
            url or self.admin_url(broker) + path,
            method=method,
            data=None if body is None else json.dumps(body).encode(),
        )
        request.add_header("Content-Type", "application/json")
        if auth:
            request.add_header("Authorization", auth)
        try:
            with urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context)).open(
                request, timeout=60
            ) as answer:
                text = answer.read()
                return answer.status, json.loads(text) if text.startswith((b"{", b"[", b'"')) else text
        except urllib.error.HTTPError as error:
            if error.code == 307:
                return self.rest(method, path, body, auth=auth, url=error.headers["Location"])
            return error.code, error.read()

    def client(
        self, role: str = "", *, authentication: Any = None, tls: bool = True, timeout_s: int = 60
    ) -> pulsar.Client:
        if role:
            authentication = pulsar.AuthenticationToken(secret_token(sub=role, exp=int(time.time()) + 600).decode())
        options: dict[str, Any] = (
            {"tls_trust_certs_file_path": str(self.tls / "ca.pem"), "tls_validate_hostname": True} if tls else {}
        )
        logger = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
        return pulsar.Client(
            self.url(tls=tls),
            authentication=authentication,
            logger=logger,
            operation_timeout_seconds=timeout_s,
            **options,
        )


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: Any) -> None:
        return None


@pytest.fixture(scope="module")
def region(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    with Secured(tmp_path_factory.mktemp("secured")) as region:
        region.start(bookies=2, brokers=2)
        root = bearer("root")
        urls = {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()}
        assert region.rest("PUT", "/admin/v2/clusters/us", urls, auth=root)[0] == 204
        assert (
            region.rest(
                "PUT", "/admin/v2/tenants/public", {"adminRoles": ["boss"], "allowedClusters": ["us"]}, auth=root
            )[0]
            == 204
        )
        assert (
            region.rest(
                "PUT", "/admin/v2/tenants/other", {"adminRoles": ["stranger"], "allowedClusters": ["us"]}, auth=root
            )[0]
            == 204
        )
        assert region.rest("PUT", "/admin/v2/namespaces/public/default", auth=bearer("boss"))[0] == 204
        until(
            lambda: region.rest("GET", "/admin/v2/namespaces/public/default", auth=bearer("boss"), broker=1)[0] == 200
        )
        yield region
        region.issuer.close()
        region.people.close()


def grant(region: Secured, role: str, *actions: str) -> None:
    """Once both brokers know it."""
    assert region.rest("POST", f"{GRANTS}/{role}", list(actions), auth=bearer("boss"))[0] == 204
    until(lambda: set(actions) <= set(region.rest("GET", GRANTS, auth=bearer("boss"), broker=1)[1].get(role, ())))


def test_the_admin_interface_asks_who_it_is(region: Secured) -> None:
    for path in ("/admin/v2/tenants", TOPICS, "/admin/v2/clusters", "/heliograph/v1/status"):
        status, body = region.rest("GET", path)
        assert status == 401 and b"authentication" in body
    assert region.rest("GET", "/admin/v2/clusters", auth="Bearer x.y.z")[0] == 401
    assert region.rest("GET", "/admin/v2/clusters", auth="Digest x")[0] == 401
    assert region.rest("GET", "/admin/v2/clusters", auth=bearer("anybody"))[0] == 200
    for path in ("/status.html", "/metrics", "/admin/v2/brokers/health"):
        assert region.rest("GET", path)[0] == 200, path
    assert region.rest("GET", "/no/such/path")[0] == 404


def test_each_admin_has_a_reach(region: Secured) -> None:
    boss, stranger, root = bearer("boss"), bearer("stranger"), bearer("root")
    assert region.rest("GET", "/admin/v2/tenants/public", auth=boss)[0] == 200
    for method, path, body in (
        ("GET", "/admin/v2/tenants/public", None),
        ("GET", GRANTS, None),
        ("POST", f"{GRANTS}/stranger", ["produce"]),
        ("PUT", "/admin/v2/namespaces/public/mine", None),
        ("PUT", f"{TOPICS}/t", None),
        ("DELETE", "/admin/v2/namespaces/public/default", None),
    ):
        assert region.rest(method, path, body, auth=stranger)[0] == 403, path
    for path in ("/admin/v2/tenants/new", "/admin/v2/tenants/public", "/admin/v2/clusters/eu"):
        assert region.rest("PUT", path, {"adminRoles": ["boss"], "allowedClusters": ["us"]}, auth=boss)[0] == 403, path
    assert region.rest("GET", GRANTS, auth=root) == (200, {})


def test_a_cluster_names_no_address_that_is_not_listed(region: Secured) -> None:
    for field, url in (
        ("serviceUrl", "http://169.254.169.254/latest"),
        ("brokerServiceUrl", "pulsar://192.0.2.1:6650"),
        ("serviceUrl", "file:///etc/passwd"),
    ):
        status, text = region.rest("PUT", "/admin/v2/clusters/bad", {field: url}, auth=bearer("root"))
        assert status == 412 and (b"allowed_urls" in text or b"expected" in text), (status, text)
    assert region.rest("GET", "/admin/v2/clusters", auth=bearer("root"))[1] == ["us"]
    urls = {"serviceUrl": region.admin_url(), "brokerServiceUrl": region.service_url()}
    assert region.rest("POST", "/admin/v2/clusters/us", urls, auth=bearer("root"))[0] == 204


def test_no_path_leads_to_another_by_dots(region: Secured) -> None:
    """A broker that asks another in its own name must ask for no more than was checked."""
    boss, reader, topic = bearer("boss"), bearer("dots"), f"{TOPICS}/dotted"
    assert region.rest("PUT", f"{topic}/partitions", 8, auth=boss)[0] == 204
    until(lambda: region.rest("GET", f"{topic}/partitions", auth=boss, broker=1)[1].get("partitions") == 8)
    grant(region, "dots", "consume")
    assert region.rest("PUT", f"{topic}/properties", {"a": "b"}, auth=reader)[0] == 403
    for dots in ("%2e%2e", "..", ".%2E", "x%2F..%2F.."):
        for broker in (0, 1):
            path = f"{topic}/subscription/{dots}/properties"
            assert region.rest("PUT", path, {"a": "b"}, auth=reader, broker=broker)[0] in (403, 404, 412), dots
    assert region.rest("GET", f"{topic}/properties", auth=boss)[1] == {}
    assert region.rest("DELETE", f"{GRANTS}/dots", auth=boss)[0] == 204
    assert region.rest("DELETE", f"{topic}/partitions", auth=boss)[0] == 204


def test_what_only_a_super_user_sets_is_in_no_body_of_an_admin(region: Secured) -> None:
    boss, root, path = bearer("boss"), bearer("root"), "/admin/v2/namespaces/public/with-policies"
    assert region.rest("PUT", "/admin/v2/resourcegroups/shared", {}, auth=root)[0] in (200, 204)
    until(lambda: "shared" in region.rest("GET", "/admin/v2/resourcegroups", auth=root)[1])
    for fields in ({"antiAffinityGroup": "g"}, {"resource_group_name": "shared"}):
        status, text = region.rest("PUT", path, fields, auth=boss)
        assert status == 403 and b"super user" in text, (fields, text)
        assert region.rest("GET", path, auth=boss)[0] == 404
        assert region.rest("PUT", path, fields, auth=root)[0] == 204
        until(lambda: region.rest("GET", path, auth=root)[0] == 200)
        assert region.rest("GET", path, auth=root)[1].items() >= fields.items()
        assert region.rest("DELETE", path, auth=root)[0] == 204
    assert region.rest("PUT", path, {"resource_group_name": "absent"}, auth=root)[0] == 412
    assert region.rest("DELETE", "/admin/v2/resourcegroups/shared", auth=root)[0] == 204


def test_grants_over_rest(region: Secured) -> None:
    boss = bearer("boss")
    grant(region, "reader", "consume")
    assert region.rest("GET", GRANTS, auth=boss)[1] == {"reader": ["consume"]}
    assert region.rest("POST", f"{GRANTS}/reader", ["fly"], auth=boss)[0] == 400
    assert region.rest("POST", f"{TOPICS}/one/permissions/reader", ["produce"], auth=boss)[0] == 204
    assert region.rest("GET", f"{TOPICS}/one/permissions", auth=boss)[1] == {"reader": ["consume", "produce"]}
    assert region.rest("GET", f"{TOPICS}/two/permissions", auth=boss)[1] == {"reader": ["consume"]}
    assert region.rest("DELETE", f"{TOPICS}/one/permissions/reader", auth=boss)[0] == 204
    assert region.rest("DELETE", f"{TOPICS}/one/permissions/reader", auth=boss)[0] == 404
    assert region.rest("POST", f"{GRANTS}/subscription/s", ["reader", "other"], auth=boss)[0] == 204
    assert region.rest("DELETE", f"{GRANTS}/s/other", auth=boss)[0] == 204
    assert region.rest("GET", f"{GRANTS}/subscription", auth=boss)[1] == {"s": ["reader"]}
    assert region.rest("DELETE", f"{GRANTS}/s/reader", auth=boss)[0] == 204
    assert region.rest("DELETE", f"{GRANTS}/reader", auth=boss)[0] == 204
    assert region.rest("GET", GRANTS, auth=boss)[1] == {}


def test_a_reader_of_many_topics_needs_the_right_to_each(region: Secured) -> None:
    """`/heliograph/v1/reading`: the route is open to any role, and every topic that the body names is checked."""
    allowed, other = "persistent://public/default/read-this", "persistent://public/default/read-that"
    for topic in (allowed, other):
        assert region.rest("PUT", f"{TOPICS}/{topic.rpartition('/')[2]}", auth=bearer("boss"))[0] == 204
    assert region.rest("POST", f"{TOPICS}/read-this/permissions/reader", ["consume"], auth=bearer("boss"))[0] == 204
    places = {allowed: "0:0", other: "0:0"}
    bodies: dict[str, Any] = {
        "snapshots": {"topics": [allowed, other]},
        "vectors": {"positions": places},
        "hold": {"positions": places, "subscription": "s"},
        "held": {"topics": [allowed, other], "subscription": "s"},
        "objects": {"ranges": {allowed: [[0, 0, 0]], other: [[0, 0, 0]]}},
        "blocks": {"ranges": [[allowed, 0, 0, 0], [other, 0, 0, 0]]},
    }
    for verb, body in bodies.items():
        path = f"/heliograph/v1/reading/{verb}"
        assert region.rest("POST", path, body)[0] == 401
        assert region.rest("POST", path, body, auth=bearer("reader"))[0] == 403, verb
        (field,) = set(body) & {"topics", "positions", "ranges"}
        kept = body[field][:1] if isinstance(body[field], list) else {allowed: body[field][allowed]}
        assert region.rest("POST", path, {**body, field: kept}, auth=bearer("reader"))[0] == 200, verb
    assert region.rest("DELETE", f"{TOPICS}/read-this/permissions/reader", auth=bearer("boss"))[0] == 204


def test_brokers_know_each_other_where_a_call_needs_several(region: Secured) -> None:
    """Partitions lie on both brokers; statistics of all are asked of one, which asks the other with credentials of its
    own.
    """
    boss = bearer("boss")
    assert region.rest("PUT", f"{TOPICS}/parts/partitions", 8, auth=boss)[0] == 204
    until(lambda: region.rest("GET", f"{TOPICS}/parts/partitions", auth=boss, broker=1)[1]["partitions"] == 8)
    client = region.client("boss")
    producer = client.create_producer("parts")
    for number in range(16):
        producer.send(b"%d" % number)
    client.close()
    for broker in (0, 1):
        status, stats = region.rest("GET", f"{TOPICS}/parts/partitioned-stats", auth=boss, broker=broker)
        assert status == 200 and stats["msgInCounter"] == 16
    assert region.rest("PUT", "/admin/v2/namespaces/public/default/unload", auth=boss)[0] == 204
    forged = f"heliograph {secret_token('HS512', region='us', node='us-broker-0', until_ms=1 << 60).decode()}"
    assert region.rest("GET", "/admin/v2/tenants", auth=forged)[0] == 401


def test_usage_of_a_tenant_over_all_brokers(region: Secured) -> None:
    assert (
        region.rest(
            "PUT", "/admin/v2/tenants/counted", {"adminRoles": ["boss"], "allowedClusters": ["us"]}, auth=bearer("root")
        )[0]
        == 204
    )
    assert region.rest("PUT", "/admin/v2/namespaces/counted/here", auth=bearer("boss"))[0] == 204
    until(lambda: region.rest("GET", "/admin/v2/namespaces/counted/here", auth=bearer("boss"), broker=1)[0] == 200)
    client = region.client("boss")
    for number in range(6):
        name = f"persistent://counted/here/t{number}"
        consumer = client.subscribe(name, "s")
        client.create_producer(name).send(b"x" * 1000)
        consumer.acknowledge(consumer.receive(60_000))
    client.close()
    for broker in (0, 1):
        status, row = region.rest("GET", "/heliograph/v1/usage/counted?all=true", auth=bearer("boss"), broker=broker)
        assert status == 200 and (row["messages_in"], row["messages_out"]) == (6, 6), row
        assert row["bytes_in"] == row["bytes_out"] > 6000 and row["storage_bytes"] > 6000
    assert region.rest("GET", "/heliograph/v1/usage?all=true", auth=bearer("root"))[1]["counted"] == row
    assert region.rest("GET", "/heliograph/v1/usage/counted", auth=bearer("stranger"))[0] == 403
    assert region.rest("GET", "/heliograph/v1/usage", auth=bearer("boss"))[0] == 403
    lines = [
        line for broker in (0, 1) for line in region.rest("GET", "/metrics", broker=broker)[1].decode().splitlines()
    ]
    wanted = 'heliograph_tenant_in_messages_total{cluster="us",tenant="counted"} '
    assert sum(int(line.removeprefix(wanted)) for line in lines if line.startswith(wanted)) == 6


def test_a_token_over_tls(region: Secured) -> None:
    grant(region, "writer", "produce", "consume")
    client = region.client("writer")
    consumer = client.subscribe("tls", "s")
    client.create_producer("tls").send(b"over tls")
    assert consumer.receive(60_000).data() == b"over tls"
    client.close()


def test_a_wrong_role_fails_at_once_and_a_wrong_token_too_as_far_as_the_client_sees_it(region: Secured) -> None:
    """This client takes the error that answers CONNECT for a lost connection, and tries until its own time is over."""
    client = region.client("nobody")
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("t")
    client.close()
    wrong = pulsar.AuthenticationToken(secret_token(secret=bytes(64), sub="root").decode())
    for client in (region.client(authentication=wrong, timeout_s=1), region.client(tls=False, timeout_s=1)):
        with pytest.raises((pulsar.AuthenticationError, pulsar.Timeout)):
            client.create_producer("t")
        client.close()
    assert region.rest("GET", TOPICS, auth=bearer("boss"))[1].count("persistent://public/default/t") == 0


def test_a_client_certificate_and_a_password(region: Secured) -> None:
    """The common name of the certificate is `replicator.us` here: a role like any other on the clients' port."""
    grant(region, "replicator.us", "produce")
    certificate = pulsar.AuthenticationTLS(str(region.tls / "replicator.us.pem"), str(region.tls / "replicator.us.key"))
    client = region.client(authentication=certificate)
    client.create_producer("certified").send(b"x")
    with pytest.raises(pulsar.AuthorizationError):
        client.subscribe("certified", "s")
    client.close()
    grant(region, "ann", "produce")
    client = region.client(authentication=pulsar.AuthenticationBasic("ann", "password"))
    client.create_producer("passed").send(b"x")
    client.close()
    assert (
        region.rest("GET", f"{TOPICS}/passed/stats", auth="Basic " + base64.b64encode(b"ann:password").decode())[0]
        == 200
    )
    assert (
        region.rest("GET", f"{TOPICS}/passed/stats", auth="Basic " + base64.b64encode(b"ann:wrong").decode())[0] == 401
    )


def test_a_token_that_runs_out_is_renewed_on_the_same_connection(region: Secured) -> None:
    grant(region, "renewing", "produce")
    asked: list[float] = []

    def supply() -> str:
        asked.append(time.monotonic())
        return secret_token(sub="renewing", exp=int(time.time()) + (20 if len(asked) == 1 else 600)).decode()

    client = region.client(authentication=pulsar.AuthenticationToken(supply))
    producer = client.create_producer("renewed")

    def renewed() -> bool:
        producer.send(b"x")
        return len(asked) == 2

    until(renewed)
    first = region.rest("GET", f"{TOPICS}/renewed/stats", auth=bearer("boss"))[1]["publishers"][0]["address"]
    producer.send(b"y")
    assert region.rest("GET", f"{TOPICS}/renewed/stats", auth=bearer("boss"))[1]["publishers"][0]["address"] == first
    client.close()


def test_oauth2_with_an_issuer_that_publishes_its_keys(region: Secured) -> None:
    grant(region, "idp:oauth", "produce")
    for secret, works in (("right", True), ("wrong", False)):
        parameters = {
            "issuer_url": region.issuer.url,
            "client_id": "c",
            "client_secret": secret,
            "audience": "heliograph",
        }
        client = region.client(
            authentication=pulsar.AuthenticationOauth2(json.dumps(parameters)), timeout_s=60 if works else 1
        )
        if works:
            client.create_producer("oauth").send(b"x")
        else:
            with pytest.raises(pulsar.PulsarException):
                client.create_producer("oauth")
        client.close()
    assert {"/.well-known/openid-configuration", "/keys"} <= set(region.issuer.asked)


@pytest.mark.parametrize("tls", [False, True])
def test_a_person_signs_in_to_the_console_by_a_browser(region: Secured, tls: bool) -> None:
    port = region.processes["us-broker-0"].ports["admin_tls" if tls else "admin"]
    base = f"{'https' if tls else 'http'}://127.0.0.1:{port}"
    trust: Any = ssl.create_default_context(cafile=str(region.tls / "ca.pem")) if tls else True
    own = {"X-Heliograph-Console": "1"}
    status = f"{base}/console/at/us/heliograph/v1/status"

    async def run() -> None:
        async with ClientSession(cookie_jar=CookieJar(unsafe=True)) as browser:

            async def get(url: str, **headers: str) -> tuple[int, str]:
                async with browser.get(url, headers=headers, ssl=trust, allow_redirects=False) as answer:
                    return answer.status, await answer.text()

            assert f'data-issuer="{urlsplit(region.people.url).netloc}"' in (await get(f"{base}/console/"))[1]
            assert (await get(status, **own))[0] == 401
            async with browser.get(f"{base}/console/sign-in", ssl=trust) as answer:
                assert str(answer.url) == f"{base}/console/"
                made = [one for step in answer.history for one in step.headers.getall("Set-Cookie", [])]
            prefix = "__Secure-heliograph-" if tls else "heliograph-"
            begun, session = (next(one for one in made if one.startswith(prefix + name)) for name in ("sign-in", "ses"))
            for cookie, rest in (
                (begun, {"httponly", "max-age=600", "path=/console/signed-in", "samesite=lax"}),
                (session, {"httponly", "path=/console/", "samesite=strict"}),
            ):
                words = {part.strip().lower() for part in cookie.split(";")}
                assert rest <= words and ("secure" in words) == tls
            assert 280 <= int(session.lower().partition("max-age=")[2].partition(";")[0]) <= 300, "to the token's end"
            assert [one for one in made if one.startswith(f"{prefix}sign-in=") and "max-age=0" in one.lower()]

            assert (await get(status, **own))[0] == 200
            assert (await get(status))[0] == 401, "another site's page cannot send the header"
            assert (await get(status, **own, Authorization=bearer("nobody")))[0] == 403, "a header goes before"
            cookies = {"Cookie": session.partition(";")[0]}
            assert (await get(f"{base}/heliograph/v1/status", **own, **cookies))[0] == 401, "it is the console's alone"
            changed = f"{base}/console/at/us/admin/v2/tenants/people"
            body = {"adminRoles": [], "allowedClusters": ["us"]}
            evil = {**own, "Origin": "https://evil.example"}
            for headers, wanted in ((evil, 403), ({}, 401), (own, 204)):
                async with browser.put(changed, json=body, headers=headers, ssl=trust) as answer:
                    assert answer.status == wanted, await answer.text()
            async with browser.delete(changed, headers=own, ssl=trust) as answer:
                assert answer.status == 204
            code, text = await get(f"{base}/console/signed-in?code=x&state=y")
            assert code == 403 and text.startswith("Not signed in: this sign-in was not begun in this browser")
            assert (await get(f"{base}/console/sign-out"))[0] == 412 and (await get(status, **own))[0] == 200
            assert (await get(f"{base}/console/sign-out", **own))[0] == 204 and (await get(status, **own))[0] == 401
            if not tls:
                outside = await get(f"{base}/console/sign-in", Host="eu.example.com:8080")
                assert outside[0] == 412 and "open the console by https" in outside[1]

    asyncio.run(run())


def test_https_with_a_client_certificate(region: Secured) -> None:
    context = ssl.create_default_context(cafile=str(region.tls / "ca.pem"))
    url = f"https://127.0.0.1:{region.processes['us-broker-0'].ports['admin_tls']}/admin/v2/clusters"
    assert region.rest("GET", "", url=url, context=context)[0] == 401
    context.load_cert_chain(region.tls / "config.us.pem", region.tls / "config.us.key")
    assert region.rest("GET", "", url=url, context=context) == (200, ["us"])


def test_who_came_by_tls_is_redirected_to_tls(region: Secured) -> None:
    """Credentials that were sent encrypted are not sent on in the clear."""
    context = ssl.create_default_context(cafile=str(region.tls / "ca.pem"))
    opener = urllib.request.build_opener(_NoRedirect, urllib.request.HTTPSHandler(context=context))
    locations = []
    for broker in (0, 1):
        port = region.processes[f"us-broker-{broker}"].ports["admin_tls"]
        request = urllib.request.Request(
            f"https://127.0.0.1:{port}{TOPICS}/parts-partition-1/stats", headers={"Authorization": bearer("boss")}
        )
        try:
            assert opener.open(request, timeout=60).status == 200
        except urllib.error.HTTPError as error:
            assert error.code == 307
            locations.append(error.headers["Location"])
    other = {
        f"https://127.0.0.1:{process.ports['admin_tls']}"
        for name, process in region.processes.items()
        if "broker" in name
    }
    assert len(locations) == 1 and any(locations[0].startswith(url) for url in other)


def test_the_console_asks_other_brokers_and_regions_by_tls(region: Secured) -> None:
    """With the caller's credentials, and believing the instance's own CA; a tenant's admin sees by it what is the
    tenant's, and nothing else.
    """
    context = ssl.create_default_context(cafile=str(region.tls / "ca.pem"))
    bases = [f"https://127.0.0.1:{region.processes[f'us-broker-{broker}'].ports['admin_tls']}" for broker in (0, 1)]

    def asked(base: str, path: str, role: str) -> tuple[int, Any]:
        return region.rest("GET", "", url=f"{base}/console/at/{path}", auth=bearer(role), context=context)

    assert region.rest("PUT", f"{TOPICS}/shown", auth=bearer("boss"))[0] == 204
    owners = [asked(base, f"us{TOPICS}/shown/stats", "boss") for base in bases]
    assert [status for status, _ in owners] == [200, 200] and len({told["ownerBroker"] for _, told in owners}) == 1, (
        owners
    )
    assert asked(bases[0], f"us{TOPICS}/shown/stats", "stranger")[0] == 403
    assert asked(bases[0], "us/admin/v2/namespaces/public", "boss") == (200, ["public/default"])
    assert [
        asked(bases[0], f"us{path}", "boss")[0]
        for path in ("/admin/v2/namespaces/other", "/heliograph/v1/audit", "/heliograph/v1/bookies")
    ] == [403] * 3
    assert region.rest("PUT", "/admin/v2/clusters/far", {"serviceUrl": bases[1]}, auth=bearer("root"))[0] == 204
    try:
        until(lambda: asked(bases[0], "far/admin/v2/clusters", "root") == (200, ["far", "us"]))
    finally:
        assert region.rest("DELETE", "/admin/v2/clusters/far", auth=bearer("root"))[0] == 204


def test_a_grant_that_goes_closes_the_producer(region: Secured) -> None:
    grant(region, "leaver", "produce")
    client = region.client("leaver")
    producer = client.create_producer("left")
    producer.send(b"in")
    assert region.rest("DELETE", f"{GRANTS}/leaver", auth=bearer("boss"))[0] == 204

    def stats() -> Any:
        return region.rest("GET", f"{TOPICS}/left/stats", auth=bearer("boss"))[1]

    until(lambda: not stats()["publishers"])
    producer.send_async(b"out", None)
    with pytest.raises(pulsar.AuthorizationError):
        client.create_producer("left")
    assert stats()["msgInCounter"] == 1 and not stats()["publishers"]
    client.close()


def test_a_new_server_certificate_needs_no_restart(region: Secured) -> None:
    cert, key = region.tls / "broker.us.pem", region.tls / "broker.us.key"
    address = ("127.0.0.1", region.processes["us-broker-0"].ports["pulsar_tls"])
    before, own = ssl.get_server_certificate(address), [(path, path.read_bytes()) for path in (key, cert)]
    for path, source in ((key, "meta.us.key"), (cert, "meta.us.pem")):
        path.write_bytes((region.tls / source).read_bytes())
    until(lambda: ssl.get_server_certificate(address) != before)
    for path, content in own:
        path.write_bytes(content)
    until(lambda: ssl.get_server_certificate(address) == before)


def test_inside_another_role_is_shut_out_by_the_handshake(region: Secured) -> None:
    processes = region.processes
    ports = [
        processes["us-bookie-0"].ports["bookie"],
        processes["us-meta-0"].ports["meta"],
        processes["us-meta-0"].ports["config"],
    ]
    ports.append(processes["us-broker-0"].ports["admin_inside"])
    assert not any(_lets_in(port, region.tls, "replicator.us") for port in ports)
    assert all(_lets_in(port, region.tls, "bookie.us", wait_s=0.5) for port in ports[:2])
    assert not any(_lets_in(port, region.tls, "bookie.us") for port in ports[2:])


def test_each_call_inside_is_answered_to_whom_the_table_says(region: Secured) -> None:
    processes, folder = region.processes, inside_calls.certificates(region.tls)
    ports = {name: processes["us-meta-0"].ports[name] for name in ("meta", "config")}
    ports |= {"bookie": processes["us-bookie-0"].ports["bookie"], "link": processes["us-broker-0"].ports["link"]}
    wrong = []
    for (listener, call), wanted in inside_calls.WANTED.items():
        for letter, answer in wanted.items() if listener in ports else ():
            found = inside_calls.answered(ports[listener], folder, letter, listener, call)
            if found != answer:
                wrong.append(f"{listener} {call} {letter}: {found}, wanted {answer}")
    assert not wrong, "\n".join(wrong)


def test_each_key_of_the_metadata_is_for_whom_the_table_says(region: Secured) -> None:
    port, folder = region.processes["us-meta-0"].ports["meta"], inside_calls.certificates(region.tls)
    wrong = [line for letter in inside_calls.KEY_LETTERS for line in inside_calls.keys_answered(port, folder, letter)]
    assert not wrong, "\n".join(wrong)


def _lets_in(port: int, folder: Path, name: str, *, wait_s: float = 60.0) -> bool:
    """Whether the listener waits for the first frame; one that refuses ends the connection, on a busy machine within
    wait_s.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(folder / "ca.pem")
    context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=60) as plain, context.wrap_socket(plain) as stream:
            stream.settimeout(wait_s)
            return bool(stream.recv(1))
    except TimeoutError:
        return True
    except OSError:
        return False


def test_another_ca_and_new_certificates_need_no_restart(region: Secured, tmp_path: Path) -> None:
    brokers = [region.processes[f"us-broker-{at}"] for at in (0, 1)]

    def step(command: str, file: str, readers: Iterable[Process]) -> None:
        """Runs it; returns when every reader has taken the file over."""

        def heard() -> dict[str, int]:
            return {
                one.name: len(
                    re.findall(rf"tls\.renewed cert=\S*/{re.escape(file)}\s", one.log_path.read_text() + "\n")
                )
                for one in readers
            }

        before = heard()
        done = subprocess.run(
            [PROGRAM, "certificates", command, str(region.tls)],
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        eventually(
            lambda: all(count > before[name] for name, count in heard().items()), f"{command} is taken over by all"
        )

    def trusts(root: Path) -> bool:
        """Whether who trusts this CA alone believes broker 1."""
        context = ssl.create_default_context(cafile=str(root))
        url = f"https://127.0.0.1:{brokers[1].ports['admin_tls']}"
        try:
            return (
                region.rest(
                    "GET", "/admin/v2/clusters", auth=bearer("root"), url=f"{url}/admin/v2/clusters", context=context
                )[0]
                == 200
            )
        except urllib.error.URLError:
            return False

    old, new = tmp_path / "old.pem", tmp_path / "new.pem"
    old.write_bytes((region.tls / "ca.pem").read_bytes())
    for name in ("broker.us.pem", "broker.us.key"):
        (tmp_path / name).write_bytes((region.tls / name).read_bytes())
    everybody = list(region.processes.values())
    step("authority", "ca.pem", everybody)
    new.write_text(
        (region.tls / "ca.pem").read_text().split("-----END CERTIFICATE-----")[0] + "-----END CERTIFICATE-----\n"
    )
    assert trusts(old) and not trusts(new)
    refused = subprocess.run(
        [PROGRAM, "certificates", "retire", str(region.tls)], capture_output=True, text=True, timeout=120, check=False
    )
    assert refused.returncode == 2 and "signed by the older CA" in refused.stderr
    step("renew", "broker.us.pem", brokers)
    assert trusts(new) and not trusts(old)
    client = region.client("boss")
    producer = client.create_producer("rotated")
    producer.send(b"between")
    step("retire", "ca.pem", everybody)
    producer.send(b"after")
    (tmp_path / "ca.pem").write_bytes(new.read_bytes())
    port = brokers[1].ports["admin_inside"]
    assert _lets_in(port, region.tls, "broker.us", wait_s=0.5) and not _lets_in(port, tmp_path, "broker.us"), (
        "also at a listener that was open before"
    )
    settings = json.loads((region.folder / "us-broker-1.json").read_text())
    assert brokers[1].terminate() == 0
    brokers[1] = region.spawn(
        settings
    ).wait_ready()  # all that it reaches, and all that reach it, know the new CA alone
    producer.send(b"and by a broker that has begun since")
    client.close()
    port = brokers[1].ports["admin_inside"]
    assert (
        trusts(new)
        and _lets_in(port, region.tls, "broker.us", wait_s=0.5)
        and not _lets_in(port, tmp_path, "broker.us")
    )
