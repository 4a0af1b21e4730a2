"""The configuration's nodes over real gRPC with mutual TLS on loopback."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.x509.oid import NameOID

from benchmarks.servers import free_port
from global_config.node import ConfigNode, ConfigNodeSettings
from global_config.transport.grpc_transport import ConfigTls, GrpcTransport, make_message, open_message
from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.errors import (
    ConfigError,
    HeliographError,
    MetadataUnavailable,
    NotAllowed,
    OutcomeUnknown,
    PeerError,
)
from heliograph.raft.core import CoreSettings
from heliograph.raft.member.raft_node import RaftSettings
from heliograph.runtime.clock import SystemClock
from heliograph.runtime.system_disk import SystemDisk
from region_node.security.certificate_authority import authority, ensure_certificates, issue, new_authority

REGIONS = ("ap", "eu", "us")
SETTINGS = ConfigNodeSettings(
    raft=RaftSettings(core=CoreSettings(election_timeout_s=1.5, heartbeat_s=0.2)), request_timeout_s=4.0
)


def tls_of(folder: Path, role: str, region: str) -> ConfigTls:
    return ConfigTls(
        ca=(folder / "ca.pem").read_bytes(),
        cert=(folder / f"{role}.{region}.pem").read_bytes(),
        key=(folder / f"{role}.{region}.key").read_bytes(),
    )


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ca")
    ensure_certificates(folder, list(REGIONS))
    return folder


@pytest.mark.slow
def test_three_regions_agree_over_mutual_tls(tmp_path: Path, certificates: Path) -> None:
    async def main() -> None:
        addresses = {name: f"127.0.0.1:{free_port()}" for name in REGIONS}
        nodes: dict[str, ConfigNode] = {}
        clients: dict[str, MetaClient] = {}
        disks: list[SystemDisk] = []
        for number, name in enumerate(REGIONS):
            rng = random.Random(number)
            transport = GrpcTransport(
                name,
                addresses,
                rng=rng,
                port=int(addresses[name].rpartition(":")[2]),
                tls=tls_of(certificates, "config", name),
            )
            disks.append(SystemDisk(tmp_path / name))
            nodes[name] = ConfigNode(
                node_id=name,
                peers=REGIONS,
                disk=disks[-1],
                transport=transport,
                clock=SystemClock(),
                rng=rng,
                settings=SETTINGS,
            )
            port = await nodes[name].start()
            clients[name] = MetaClient(
                [f"127.0.0.1:{port}"], clock=SystemClock(), rng=rng, settings=ClientSettings(timeout_s=60.0, name=name)
            )
        for name, client in clients.items():
            version = await client.put(f"/{name}", bytes(300_000), expected=-1)
            for other in clients.values():
                found = await other.get(f"/{name}")
                assert found is not None and found[1] == version
        ids = await asyncio.gather(*(client.next_ids("n") for client in clients.values() for _ in range(30)))
        assert sorted(ids) == list(range(90))
        leader = (await clients["us"].status())["leader"]
        left = [name for name in REGIONS if name != leader]
        await nodes[leader].stop()
        await clients[left[0]].put("/after", b"1")
        assert (await clients[left[1]].get("/after") or (b"", 0))[0] == b"1"
        await nodes[left[0]].stop()
        hasty = MetaClient(
            [f"127.0.0.1:{nodes[left[1]].port}"],
            clock=SystemClock(),
            rng=random.Random(9),
            settings=ClientSettings(timeout_s=1.0),
        )
        with pytest.raises((MetadataUnavailable, OutcomeUnknown)):
            await hasty.put("/alone", b"1")
        hasty.close()
        for client in clients.values():
            client.close()
        await nodes[left[1]].stop()
        for disk in disks:
            disk.close()

    asyncio.run(main())


@pytest.mark.slow
def test_a_region_joins_over_tls_leads_and_another_goes(tmp_path: Path, certificates: Path) -> None:
    """ap and eu are the first; us reaches each by an address of its settings, and they reach us by that of the
    configuration.
    """

    async def main() -> None:
        addresses = {name: f"127.0.0.1:{free_port()}" for name in REGIONS}
        nodes: dict[str, ConfigNode] = {}
        disks: list[SystemDisk] = []

        async def start(number: int, name: str, joining: bool) -> None:
            rng = random.Random(number)
            known = addresses if joining else {first: addresses[first] for first in ("ap", "eu")}
            transport = GrpcTransport(
                name,
                known,
                rng=rng,
                port=int(addresses[name].rpartition(":")[2]),
                tls=tls_of(certificates, "config", name),
            )
            disks.append(SystemDisk(tmp_path / name))
            nodes[name] = ConfigNode(
                node_id=name,
                peers=sorted(known),
                joining=joining,
                disk=disks[-1],
                transport=transport,
                clock=SystemClock(),
                rng=rng,
                settings=SETTINGS,
            )
            await nodes[name].start()

        await start(0, "ap", False)
        await start(1, "eu", False)
        client = MetaClient(
            [f"127.0.0.1:{nodes['eu'].port}"],
            clock=SystemClock(),
            rng=random.Random(7),
            settings=ClientSettings(timeout_s=60.0),
        )
        await client.put("/before", b"1")
        await start(2, "us", True)
        assert (await client.members("add", "us", f"nobody=127.0.0.1:1,{addresses['us']}"))[1]
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            try:
                await client.members("promote", "us")
                break
            except NotAllowed:
                assert asyncio.get_running_loop().time() < deadline
                await asyncio.sleep(0.05)
        report, _ = await client.members()
        assert [row["role"] for row in report["members"]] == ["voter"] * 3
        assert (await client.members("transfer", "us"))[0] is not None and (await client.members())[0]["leader"] == "us"
        await client.put("/through-us", b"1")
        assert (await client.members("remove", "ap"))[1]
        hasty = MetaClient(
            [f"127.0.0.1:{nodes['ap'].port}"],
            clock=SystemClock(),
            rng=random.Random(9),
            settings=ClientSettings(timeout_s=8.0),
        )
        with pytest.raises(MetadataUnavailable, match="'ap' was removed from the global configuration"):
            await hasty.put("/from-ap", b"1")
        hasty.close()
        await nodes["ap"].stop()
        await client.put("/without-ap", b"1")
        assert await client.get("/from-ap") is None
        assert nodes["us"].machine.get("/before") is not None and [
            row["member"] for row in (await client.members())[0]["members"]
        ] == ["eu", "us"]
        client.close()
        for name in ("eu", "us"):
            await nodes[name].stop()
        for disk in disks:
            disk.close()

    asyncio.run(main())


def pair(
    certificates: Path,
    a: ConfigTls | None,
    b: ConfigTls | None,
    main: Callable[[GrpcTransport, GrpcTransport], Coroutine[Any, Any, None]],
) -> None:
    """Two transports: "us" with the material `a`, which calls "eu" with `b`."""

    async def run() -> None:
        addresses = {name: f"127.0.0.1:{free_port()}" for name in ("us", "eu")}
        us, eu = (
            GrpcTransport(name, addresses, rng=random.Random(1), port=int(addresses[name].rpartition(":")[2]), tls=tls)
            for name, tls in (("us", a), ("eu", b))
        )
        await us.start()
        await eu.start()
        try:
            await main(us, eu)
        finally:
            await us.stop()
            await eu.stop()

    asyncio.run(run())


async def forwarded(us: GrpcTransport, tries: int = 1200) -> bytes:
    """Asks until there is a connection; raises the last error where there is none after so many tries, twenty a
    second.
    """
    for left in reversed(range(tries)):
        try:
            return await us.forward("eu", b"request", timeout_s=20.0)
        except MetadataUnavailable as error:
            if not left or "no connection" not in str(error):
                raise
            await asyncio.sleep(0.05)
    raise AssertionError


async def echo(request: bytes, writers: Sequence[str]) -> bytes:
    assert tuple(writers) in ((), ("us",)), "as its certificate says; without one nobody is proven"
    if request == b"wrong":
        raise PeerError("a wrong request")
    return request + b"!"


def test_messages_arrive_under_their_senders_name(certificates: Path) -> None:
    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        got: list[tuple[str, bytes]] = []
        done = asyncio.Event()

        def on_receive(sender: str, message: bytes) -> None:
            got.append((sender, message))
            if len(got) == 50:
                done.set()

        eu.on_receive(on_receive)
        eu.on_forward(echo)
        assert await forwarded(us) == b"request!"
        for number in range(50):
            us.send("eu", b"%d" % number)
        us.send("mars", b"lost")
        async with asyncio.timeout(60):
            await done.wait()
        assert got == [("us", b"%d" % number) for number in range(50)]
        with pytest.raises(MetadataUnavailable, match="a wrong request"):
            await us.forward("eu", b"wrong", timeout_s=30.0)
        with pytest.raises(MetadataUnavailable, match="not known"):
            await us.forward("mars", b"", timeout_s=30.0)

    pair(certificates, tls_of(certificates, "config", "us"), tls_of(certificates, "config", "eu"), main)


def test_another_ca_is_taken_without_a_restart(certificates: Path, tmp_path: Path) -> None:
    """Both trust both, then both show certificates of the new one, then the old one is trusted no more; calls go on all
    the time.
    """
    ensure_certificates(tmp_path, list(REGIONS))

    def material(region: str, shown: Path, *trusted: Path) -> ConfigTls:
        return replace(
            tls_of(shown, "config", region), ca=b"".join((folder / "ca.pem").read_bytes() for folder in trusted)
        )

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        assert await forwarded(us) == b"request!"
        old = material("us", certificates, certificates)
        for shown, trusted in (
            (certificates, (certificates, tmp_path)),
            (tmp_path, (certificates, tmp_path)),
            (tmp_path, (tmp_path,)),
        ):
            us.renew(material("us", shown, *trusted))
            eu.renew(material("eu", shown, *trusted))
            assert await forwarded(us) == b"request!"
        us.renew(old)
        with pytest.raises(HeliographError):
            await forwarded(us, 8)

    pair(certificates, tls_of(certificates, "config", "us"), tls_of(certificates, "config", "eu"), main)


def test_a_call_under_way_when_the_certificate_is_renewed_fails_and_cancels_nobody(certificates: Path) -> None:
    ours = tls_of(certificates, "config", "us")

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        came = asyncio.Event()

        async def hang(request: bytes, writers: Sequence[str]) -> bytes:
            came.set()
            await asyncio.Event().wait()
            return b""

        eu.on_forward(hang)
        call = asyncio.ensure_future(forwarded(us))
        await came.wait()
        us.renew(ours)
        with pytest.raises(OutcomeUnknown, match="was ended"):
            await call
        came.clear()
        call = asyncio.ensure_future(forwarded(us))
        await came.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    pair(certificates, ours, tls_of(certificates, "config", "eu"), main)


def test_a_connection_that_stands_by_a_ca_that_was_taken_out_is_refused(certificates: Path, tmp_path: Path) -> None:
    ensure_certificates(tmp_path, list(REGIONS))
    both = b"".join((folder / "ca.pem").read_bytes() for folder in (certificates, tmp_path))

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        eu.renew(replace(tls_of(tmp_path, "config", "eu"), ca=both))
        assert await forwarded(us) == b"request!", "both are trusted"
        eu.renew(tls_of(tmp_path, "config", "eu"))
        with pytest.raises(HeliographError, match="the certificate is none of a member"):
            await us.forward("eu", b"request", timeout_s=30.0)

    pair(
        certificates, replace(tls_of(certificates, "config", "us"), ca=both), tls_of(certificates, "config", "eu"), main
    )


def test_a_connection_that_stands_by_a_revoked_certificate_is_refused_and_by_another_goes_on(
    certificates: Path,
) -> None:
    ours = tls_of(certificates, "config", "us")
    number = format(x509.load_pem_x509_certificate(ours.cert).serial_number, "x")

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        assert await forwarded(us) == b"request!"
        eu.revoke(frozenset({"1"}))
        assert await us.forward("eu", b"request", timeout_s=30.0) == b"request!"
        eu.revoke(frozenset({number}))
        with pytest.raises(HeliographError, match="the certificate is none of a member"):
            await us.forward("eu", b"request", timeout_s=30.0)

    pair(certificates, ours, tls_of(certificates, "config", "eu"), main)


def an_authority(name: str, by: tuple[x509.Certificate, Any] | None = None) -> tuple[x509.Certificate, Any]:
    """One under which intermediates may be. by: who signs it; None: itself."""
    made, key = new_authority()
    kept = [each for each in made.extensions if not isinstance(each.value, x509.BasicConstraints)]
    constraints = x509.BasicConstraints(ca=True, path_length=None)
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer, signing = (subject, key) if by is None else (by[0].subject, by[1])
    number, since, until = x509.random_serial_number(), made.not_valid_before_utc, made.not_valid_after_utc
    extensions: list[Any] = [*kept, x509.Extension(constraints.oid, True, constraints)]
    return x509.CertificateBuilder(issuer, subject, key.public_key(), number, since, until, extensions).sign(
        signing, hashes.SHA256()
    ), key


def test_a_connection_that_stands_by_an_intermediate_is_refused_once_its_ca_was_taken_out_and_by_no_other(
    certificates: Path, tmp_path: Path
) -> None:
    ensure_certificates(tmp_path, list(REGIONS))
    root = an_authority("root")
    between = an_authority("intermediate", root)
    issue(*between, "config", "us", tmp_path / "leaf.pem", tmp_path / "leaf.key", [])
    own, another = (folder.joinpath("ca.pem").read_bytes() for folder in (tmp_path, certificates))
    its, shown = (one[0].public_bytes(serialization.Encoding.PEM) for one in (root, between))
    material = tls_of(tmp_path, "config", "eu")

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        assert await forwarded(us) == b"request!"
        eu.renew(replace(material, ca=own + its))
        assert await us.forward("eu", b"request", timeout_s=30.0) == b"request!", "another CA went"
        eu.renew(replace(material, ca=own))
        with pytest.raises(HeliographError, match="the certificate is none of a member"):
            await us.forward("eu", b"request", timeout_s=30.0)

    client = ConfigTls(
        ca=own, cert=(tmp_path / "leaf.pem").read_bytes() + shown, key=(tmp_path / "leaf.key").read_bytes()
    )
    pair(certificates, client, replace(material, ca=own + its + another), main)


def test_a_ca_that_is_there_again_with_the_same_key_is_trusted_on_and_a_file_of_none_changes_nothing(
    certificates: Path,
) -> None:
    root, key = authority(certificates)
    again = x509.CertificateBuilder(
        root.subject,
        root.subject,
        key.public_key(),
        1,
        root.not_valid_before_utc,
        root.not_valid_after_utc,
        list(root.extensions),
    )
    pem = again.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        assert await forwarded(us) == b"request!"
        eu.renew(replace(tls_of(certificates, "config", "eu"), ca=pem))
        assert await forwarded(us) == b"request!"
        with pytest.raises(ConfigError, match="file of CAs"):
            eu.renew(replace(tls_of(certificates, "config", "eu"), ca=b"-----BEGIN CERTIFICATE-----\nAAAA"))
        assert await forwarded(us) == b"request!"

    pair(certificates, tls_of(certificates, "config", "us"), tls_of(certificates, "config", "eu"), main)


@pytest.mark.slow
@pytest.mark.parametrize("mine", ["replicator us", "config ap", "another instance", "none"])
def test_a_wrong_certificate_gets_nowhere(certificates: Path, tmp_path: Path, mine: str) -> None:
    """Another role, another region's name, another instance's CA, or no certificate at all."""
    if mine == "another instance":
        ensure_certificates(tmp_path, ["us"])
        material: ConfigTls | None = tls_of(tmp_path, "config", "us")
    elif mine == "none":
        material = None
    else:
        role, region = mine.split()
        material = tls_of(certificates, role, region)

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        got: list[tuple[str, bytes]] = []
        eu.on_receive(lambda sender, message: got.append((sender, message)))
        eu.on_forward(echo)
        us.send("eu", b"forged")
        with pytest.raises(HeliographError):
            await forwarded(us, 8)
        us.send("eu", b"forged again")
        await asyncio.sleep(0.2)
        assert got == []

    pair(certificates, material, tls_of(certificates, "config", "eu"), main)


@pytest.mark.slow
def test_a_peer_that_is_another_region_is_refused(certificates: Path) -> None:
    """A proxy that points to the wrong region must not pass for the right one."""

    async def main(us: GrpcTransport, eu: GrpcTransport) -> None:
        eu.on_forward(echo)
        with pytest.raises(MetadataUnavailable, match="no connection"):
            await forwarded(us, 8)

    pair(certificates, tls_of(certificates, "config", "us"), tls_of(certificates, "config", "ap"), main)


def test_without_certificates_only_loopback() -> None:
    with pytest.raises(ConfigError, match="without certificates"):
        GrpcTransport("us", {}, rng=random.Random(1), host="0.0.0.0")


def test_a_taken_port_is_named(certificates: Path) -> None:
    async def main() -> None:
        with socket.create_server(("127.0.0.1", 0)) as taken:
            port = taken.getsockname()[1]
            transport = GrpcTransport("us", {}, rng=random.Random(1), port=port)
            with pytest.raises(ConfigError, match=rf"127.0.0.1:{port} cannot be bound"):
                await transport.start()

    asyncio.run(main())


def test_message_bytes() -> None:
    assert open_message(make_message("us", b"m")) == ("us", b"m", "")
    assert open_message(make_message("ap", b"m", "us=h:1,h:2")) == ("ap", b"m", "us=h:1,h:2")
    for wrong in (b"", b"\x02\x02us", b"\x01\x05us", b"\x01"):
        with pytest.raises(PeerError):
            open_message(wrong)


@pytest.mark.slow
def test_a_handshake_that_does_not_finish_is_ended(certificates: Path) -> None:
    async def run() -> None:
        peers, tls = {"us": "127.0.0.1:1", "eu": "127.0.0.1:1"}, tls_of(certificates, "config", "us")
        transport = GrpcTransport("us", peers, rng=random.Random(1), tls=tls, handshake_ms=200)
        port = await transport.start()
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(60):
            with contextlib.suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()
        await transport.stop()

    asyncio.run(run())
