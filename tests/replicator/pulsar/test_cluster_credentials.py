"""By what a region proves to a Pulsar cluster who it is: a token, a certificate, or a token that an issuer gives; and
what is said where that fails.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from heliograph.client.pulsar_connection import Address
from heliograph.model.configuration.configuration_records import PulsarCluster
from heliograph.model.errors import HeliographError, LinkError, NotAllowed
from region_node.replication.pulsar_clusters import PulsarClusters
from region_node.security.allowed_urls import UrlList
from region_node.security.certificate_authority import ensure_certificates
from replicator.health.link_causes import Cause
from replicator.pulsar.cluster_connections import ClusterConnections
from replicator.pulsar.cluster_credentials import ClientCredentials, ClusterFiles, lasts_s
from tests.region_node.security.authentication.issuer_server import Issuer

CLOUD = PulsarCluster(name="cloud", gateway="us", service_url="pulsar+ssl://127.0.0.1:1")


@pytest.fixture(scope="module")
def issuer() -> Iterator[Issuer]:
    made = Issuer()
    yield made
    made.close()


def written(folder: Path, **fields: Any) -> PulsarCluster:
    (folder / "client.json").write_text(json.dumps(fields))
    return replace(CLOUD, oauth_file="client.json")


def host(now: Callable[[], float], folder: Path, *listed: str) -> PulsarClusters:
    """listed: hosts that `security.allowed_urls` names."""
    clock: Any = SimpleNamespace(monotonic=now)
    view: Any = SimpleNamespace(partitions=lambda _topic: 3)
    files = ClusterFiles(str(folder), UrlList(listed).names)
    return PulsarClusters("us", view, None, files, clock)  # type: ignore[arg-type]


def test_no_file_is_read_but_those_of_one_folder(tmp_path: Path) -> None:
    folder = tmp_path / "shown"
    folder.mkdir()
    (folder / "token").write_text("mine\n")
    (tmp_path / "secret").write_text("hush")
    fields = ("token_file", "trust_file", "certificate_file", "key_file", "oauth_file")

    def read(files: ClusterFiles, field: str, name: str) -> object:
        cluster = replace(CLOUD, **{"certificate_file": "token" if field == "key_file" else "", field: name})
        by = {"token_file": files.token, "oauth_file": files.client}
        return by.get(field, files.tls)(cluster)

    for field in fields:
        for name in (
            str(tmp_path / "secret"),
            "../secret",
            "..",
            ".",
            f"{folder}/../secret",
            "/etc/passwd",
            "a/b",
            "a\0b",
        ):
            with pytest.raises(NotAllowed, match=r"is no name of a file.*security\.cluster_files"):
                read(ClusterFiles(str(folder)), field, name)
        with pytest.raises(NotAllowed, match=r"security\.cluster_files is not set: set it to the folder") as refused:
            read(ClusterFiles(), field, str(tmp_path / "secret"))
        assert "hush" not in str(refused.value)
    with_slash = ClusterFiles(f"{folder}/")
    assert with_slash.token(replace(CLOUD, token_file="token")) == "mine"
    assert with_slash.token(replace(CLOUD, token_file=f"{folder}/token")) == "mine", "as it was registered before"


def test_what_proves_who_a_region_is_goes_to_hosts_that_the_settings_name(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("mine")
    ensure_certificates(tmp_path, ["us"])
    heard: list[bytes] = []

    async def main() -> None:
        async def hear(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            heard.append(await reader.read(1 << 16))
            writer.close()

        server = await asyncio.start_server(hear, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        shown = {
            "token_file": "token",
            "certificate_file": "replicator.us.pem",
            "oauth_file": written(tmp_path, issuer_url="https://idp", client_id="us", client_secret="s").oauth_file,
        }
        for field, name in shown.items():
            cluster = replace(CLOUD, **{field: name}, admin_url=f"https://127.0.0.1:{port}")
            for listed in ((), ("cloud.example",)):
                clusters = host(lambda: 0.0, tmp_path, *listed)
                connections = ClusterConnections(lambda: 0.0, clusters)
                with pytest.raises(NotAllowed, match=r"security\.allowed_urls .* add 127\.0\.0\.1 to it"):
                    await connections.alone(cluster, Address("127.0.0.1", port, secure=True))
                with pytest.raises(NotAllowed, match=r"security\.allowed_urls .* add 127\.0\.0\.1 to it"):
                    await clusters.prepare(cluster, "persistent://public/both/parted-partition-0")
        assert not heard
        by_token = replace(CLOUD, token_file="token")
        named = ClusterConnections(lambda: 0.0, host(lambda: 0.0, tmp_path, "127.0.0.1"))
        with pytest.raises(HeliographError):  # nobody answers
            await named.alone(by_token, Address("127.0.0.1", port, secure=False))
        assert b"mine" in heard.pop()
        with pytest.raises(HeliographError):
            await ClusterConnections(lambda: 0.0).alone(CLOUD, Address("127.0.0.1", port, secure=False))
        assert heard, "without anything to show, any host is asked"
        server.close()

    asyncio.run(main())


def test_an_issuer_is_asked_once_until_its_token_is_old(issuer: Issuer, tmp_path: Path) -> None:
    cluster = written(
        tmp_path,
        type="client_credentials",
        issuer_url=issuer.url,
        client_id="us",
        client_secret="right",
        audience="cloud",
    )
    at = [0.0]

    async def main() -> None:
        clusters, before = host(lambda: at[0], tmp_path), issuer.given
        first = await clusters.token(cluster)
        assert first.count(".") == 2 and await clusters.token(cluster) == first and issuer.given == before + 1
        at[0] = 239.0
        assert await clusters.token(cluster) == first
        at[0] = 241.0  # of 300 s that it holds
        await clusters.token(cluster)
        assert issuer.given == before + 2

    asyncio.run(main())


def test_links_that_want_a_token_together_share_one_request(issuer: Issuer, tmp_path: Path) -> None:
    cluster = written(tmp_path, issuer_url=issuer.url, client_id="us", client_secret="right", audience="cloud")
    other = {"issuer_url": issuer.url, "client_id": "us", "client_secret": "wrong"}
    (tmp_path / "wrong.json").write_text(json.dumps(other))
    wrong = replace(CLOUD, oauth_file="wrong.json")

    async def main() -> None:
        clusters, before = host(lambda: 0.0, tmp_path), issuer.given
        impatient = asyncio.create_task(clusters.token(cluster))
        others = [asyncio.create_task(clusters.token(cluster)) for _ in range(20)]
        await asyncio.sleep(0)
        impatient.cancel()  # who asked first gives up: the others still get the answer
        assert len({*await asyncio.gather(*others)}) == 1 and issuer.given == before + 1
        refused = await asyncio.gather(*(clusters.token(wrong) for _ in range(3)), return_exceptions=True)
        assert all(isinstance(error, LinkError) and error.cause is Cause.UNAUTHORIZED for error in refused)
        assert (await clusters.token(cluster)).count(".") == 2

    asyncio.run(main())


def test_a_token_by_oauth_goes_to_no_admin_interface_in_clear(issuer: Issuer, tmp_path: Path) -> None:
    plain = replace(
        written(tmp_path, issuer_url=issuer.url, client_id="us", client_secret="right"),
        admin_url="http://cloud.example:8080",
    )

    async def main() -> None:
        clusters, before = host(lambda: 0.0, tmp_path), issuer.given
        with pytest.raises(
            NotAllowed, match=r"goes by TLS only: give it an https:// --url, not http://cloud\.example:8080"
        ):
            await clusters.prepare(plain, "persistent://public/both/parted-partition-0")
        assert issuer.given == before

    asyncio.run(main())


def test_what_fails_is_a_sentence_without_the_secret(issuer: Issuer, tmp_path: Path) -> None:
    async def refused(cluster: PulsarCluster) -> str:
        with pytest.raises((NotAllowed, LinkError)) as found:
            await host(lambda: 0.0, tmp_path).token(cluster)
        assert "hush" not in str(found.value) and (
            not isinstance(found.value, LinkError) or found.value.cause is Cause.UNAUTHORIZED
        )
        return str(found.value)

    async def main() -> None:
        fields = {"issuer_url": issuer.url, "client_id": "us", "client_secret": "hush"}
        assert "invalid_client" in await refused(written(tmp_path, **fields))
        assert "gave client us no token" in await refused(
            written(tmp_path, **{**fields, "issuer_url": "http://127.0.0.1:1"})
        )
        for plain in ("http://idp.example", "http://127.0.0.1.idp.example", "http://localhost.idp.example:80"):
            assert "must be https" in await refused(written(tmp_path, **{**fields, "issuer_url": plain}))
        discovery = "/.well-known/openid-configuration"
        before = issuer.pages[discovery]
        issuer.pages[discovery] = (
            200,
            json.dumps(
                {"token_endpoint": f"http://127.0.0.1.nip.example:{issuer.url.rpartition(':')[2]}/token"}
            ).encode(),
        )
        try:
            assert "for tokens: it must be https" in await refused(written(tmp_path, **fields))
        finally:
            issuer.pages[discovery] = before
        assert "must be JSON with issuer_url" in await refused(written(tmp_path, client_id="us"))
        (tmp_path / "client.json").write_text("[]")
        assert "must be JSON" in await refused(replace(CLOUD, oauth_file="client.json"))
        assert "cannot be read" in await refused(replace(CLOUD, oauth_file="none"))

    asyncio.run(main())


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b'{"token_endpoint": "%s"}' % (b"x" * (1 << 20)), "more than 1 MiB"),
        (b"[" * 200_000, "RecursionError"),
    ],
    ids=["long", "deep"],
)
def test_an_issuers_answer_is_bounded(issuer: Issuer, tmp_path: Path, body: bytes, said: str) -> None:
    cluster = written(tmp_path, issuer_url=f"{issuer.url}/odd", client_id="us", client_secret="right")
    issuer.pages["/odd/.well-known/openid-configuration"] = (200, body)

    async def main() -> None:
        with pytest.raises(LinkError, match=said) as found:
            await host(lambda: 0.0, tmp_path).token(cluster)
        assert found.value.cause is Cause.UNAUTHORIZED and len(str(found.value)) < 500

    asyncio.run(main())


def test_an_issuers_answer_is_utf_8_whatever_it_says(
    issuer: Issuer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(issuer, "content_type", "application/json; charset=utf-16")
    cluster = written(tmp_path, issuer_url=issuer.url, client_id="us", client_secret="right")
    assert asyncio.run(host(lambda: 0.0, tmp_path).token(cluster)).count(".") == 2


def test_how_long_a_token_is_used() -> None:
    assert [lasts_s(given) for given in (300, 60.0, None, "300", 0, True)] == [240.0, 48.0, 48.0, 48.0, 48.0, 48.0]
    who = ClientCredentials("https://idp", "us", "s", scope="produce")
    assert who.form == {"grant_type": "client_credentials", "client_id": "us", "client_secret": "s", "scope": "produce"}


def test_a_certificate_needs_its_key_and_tls(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us", "eu"])
    mine, key, files = "replicator.us.pem", "replicator.us.key", ClusterFiles(str(tmp_path), lambda _host: True)
    with_pair = replace(CLOUD, certificate_file=mine, key_file=key)
    files.tls(with_pair)
    files.tls(replace(CLOUD, certificate_file=key))  # one file with both
    for bad, text in (
        (replace(with_pair, key_file="replicator.eu.key"), "are no pair"),
        (replace(with_pair, key_file=""), "are no pair"),
        (replace(with_pair, certificate_file="none"), "the file of its certificate cannot be read"),
        (replace(with_pair, key_file="none"), "the file of its key cannot be read"),
    ):
        with pytest.raises(NotAllowed, match=text):
            files.tls(bad)

    async def plain() -> None:
        with pytest.raises(NotAllowed, match=r"goes by TLS only: give it a pulsar\+ssl:// address"):
            await ClusterConnections(lambda: 0.0).alone(with_pair, Address("127.0.0.1", 1, secure=False))

    asyncio.run(plain())
