"""Before authentication: connections per address, the load balancer's header, and which hosts a URL may name."""

from __future__ import annotations

import random
import socket
import struct
from collections.abc import Callable
from typing import ClassVar

import pytest

from heliograph.model.configuration.configuration_records import PulsarCluster, RegionInfo
from heliograph.model.errors import NotAllowed, PeerError
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.client_addresses import HEADER_BYTES_MAX, SIGNATURE, ProxyHeader
from region_node.faces.pulsar.connection.pulsar_connection import PulsarConnection
from region_node.security.allowed_urls import ListedRegions, UrlList
from tests.region_node.faces.pulsar.codec import Reader, frame
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, FakeTransport, K, with_broker


def header(host: str = "203.0.113.7", port: int = 4711, *, command: int = 0x21, tail: bytes = b"") -> bytes:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    packed = socket.inet_pton(family, host)
    body = packed + bytes(len(packed)) + struct.pack(">HH", port, 6650) + tail
    return SIGNATURE + struct.pack(">BBH", command, 0x21 if ":" in host else 0x11, len(body)) + body


# -- the header


@pytest.mark.parametrize("host", ["203.0.113.7", "2001:db8::7"])
@pytest.mark.parametrize("tail", [b"", b"\x04\x00\x03abc"])
def test_a_header_at_any_cut(host: str, tail: bytes) -> None:
    data = header(host, tail=tail) + b"rest"
    for cut in range(len(data)):
        reader = ProxyHeader()
        out = (reader.feed(data[:cut]) or b"") if cut else b""
        out += (reader.feed(data[cut:]) or b"") if reader.source is None else data[cut:]
        assert (reader.source, out) == ((host, 4711), b"rest"), cut


def test_a_health_check_names_no_client() -> None:
    reader = ProxyHeader()
    assert reader.feed(SIGNATURE + b"\x20\x00\x00\x00") == b"" and reader.source is None


@pytest.mark.parametrize(
    "data",
    [
        b"PROXY TCP4 203.0.113.7 10.0.0.1 1 2\r\n",
        frame(K.CONNECT, client_version="x"),
        SIGNATURE + b"\x31\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x22\x11\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x12\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x31\x00\xd8" + bytes(216),
        SIGNATURE + b"\x21\x11\x00\x0b" + bytes(11),
        SIGNATURE + b"\x21\x21\x00\x0c" + bytes(12),
        SIGNATURE + b"\x21\x11" + struct.pack(">H", HEADER_BYTES_MAX + 1),
    ],
)
def test_what_is_no_header_is_refused(data: bytes) -> None:
    with pytest.raises(PeerError):
        ProxyHeader().feed(data)


def test_any_bytes_are_a_header_or_a_refusal() -> None:
    rng = random.Random(3)
    for _ in range(2000):
        data = bytearray(header() + b"rest")
        for _ in range(rng.randrange(1, 4)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            ProxyHeader().feed(bytes(data))
        except PeerError:
            pass


def test_the_real_address_is_in_the_statistics() -> None:
    async def test(broker: Broker) -> None:
        client = Client.__new__(Client)
        client.protocol = PulsarConnection(broker.listener.opened, broker.listener.broker, link=False, balanced=True)
        client.transport = FakeTransport(client.protocol)
        client.reader, client.got, client.requests = Reader(), [], 0
        client.protocol.connection_made(client.transport)
        data = header() + frame(K.CONNECT, client_version="t", protocol_version=19)
        assert not await client.do(data[:30])
        ((answer, _),) = await client.do(data[30:])
        assert answer.type == K.CONNECTED
        await client.producer()
        assert broker.topics.loaded[TOPIC].stats([])["publishers"][0]["address"] == "/203.0.113.7:4711"

    with_broker(test)


def test_a_client_that_forges_no_header_gets_nothing_where_one_is_wanted() -> None:
    async def test(broker: Broker) -> None:
        protocol = PulsarConnection(broker.listener.opened, broker.listener.broker, link=False, balanced=True)
        transport = FakeTransport(protocol)
        protocol.connection_made(transport)
        protocol.data_received(frame(K.CONNECT, client_version="t"))
        assert transport.closing and not protocol.connected

    with_broker(test)


# -- connections per address


def test_one_address_too_often_is_refused_and_its_place_given_back() -> None:
    async def test(broker: Broker) -> None:
        first, _ = await broker.client(), await broker.client()
        third = Client(broker.listener)
        ((error, _),) = await third.news()
        assert error.error.error == pb.TooManyRequests and "address" in error.error.message
        assert third.transport.closing
        first.transport.abort()
        await broker.client()

    with_broker(test, connections_per_address=2)


# -- URLs


def test_the_list_of_urls() -> None:
    urls = UrlList(("Broker.test", "*.corp.test", "10.0.0.0/8", "::1"))
    for good in (
        "http://broker.test:8080",
        "https://a.b.corp.test",
        "http://10.1.2.3:1",
        "http://[::1]:8080/",
        "http://BROKER.test.",
    ):
        assert urls.check(good, ("http", "https")) == good
    for bad in (
        "http://169.254.169.254/latest/meta-data",
        "http://localhost:8080",
        "http://127.0.0.1",
        "http://corp.test",
        "http://evilcorp.test",
        "http://broker.test.evil.test",
        "http://broker.test@evil.test",
        "http://user:secret@broker.test",
        "http://0x0a000001",
        "http://[::ffff:127.0.0.1]",
        "file:///etc/passwd",
        "gopher://broker.test",
        "http://",
        "broker.test",
        "http://broker.test:port",
        "http://broker.test\r\nHost: x",
    ):
        with pytest.raises(NotAllowed):
            urls.check(bad, ("http", "https"))
    assert urls.check("pulsar://broker.test:1,10.0.0.1:2", ("pulsar",))
    with pytest.raises(NotAllowed):
        urls.check("pulsar://broker.test:1,192.0.2.1:2", ("pulsar",))
    assert UrlList(()).check("http://anything", ("http",))
    with pytest.raises(NotAllowed):
        UrlList(()).check("ftp://anything", ("http",))
    for unknown in ("eu..test", ".", "e" * 64 + ".test", "eu." + "e" * 64):
        with pytest.raises(NotAllowed, match="no host name"):
            UrlList(()).check(f"pulsar://{unknown}:6650", ("pulsar",))


def test_links_see_only_addresses_that_are_listed() -> None:
    class View:
        broken: ClassVar[dict[str, str]] = {"/regions/ap": "of a newer version"}

        def cluster(self, name: str) -> PulsarCluster | None:
            urls = {"admin_url": "http://192.0.2.1:8080", "service_url": "pulsar://10.0.0.1:6650"}
            return PulsarCluster(name=name, gateway="us", **urls) if name == "cloud" else None

        def region(self, name: str) -> RegionInfo | None:
            links = {"us": ["pulsar+ssl://10.0.0.1:1", "pulsar+ssl://192.0.2.1:1"], "ap": ["pulsar://192.0.2.1:1"]}
            return (
                RegionInfo(name=name, number=2, service_url="pulsar://192.0.2.1:6650", link_urls=links)
                if name == "eu"
                else None
            )

        def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
            return lambda: None

    regions = ListedRegions(View(), UrlList(("10.0.0.0/8",)))
    found = regions.region("eu")
    assert found is not None and regions.region("xx") is None
    assert (found.service_url, found.link_urls, found.number) == ("", {"us": ["pulsar+ssl://10.0.0.1:1"], "ap": []}, 2)
    cluster = regions.cluster("cloud")
    assert cluster is not None and regions.cluster("xx") is None
    assert (cluster.service_url, cluster.admin_url) == ("pulsar://10.0.0.1:6650", "")
    assert regions.broken == View.broken
