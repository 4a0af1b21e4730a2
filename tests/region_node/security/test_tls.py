"""TLS contexts: whose certificate is let in where, by the handshake alone, and certificates that change while a process
runs.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import uvloop
from cryptography import x509

from heliograph.model.errors import ConfigError
from region_node.security import certificate_renewal
from region_node.security.certificate_authority import ensure_certificates
from region_node.security.settings import TlsSettings
from region_node.security.tls import Certificates, client_context, server_context, together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tls")
    ensure_certificates(made, ["us", "eu"])
    ensure_certificates(made / "foreign", ["us"])
    return made


def settings(folder: Path, region: str = "us", **fields: Any) -> TlsSettings:
    names = ("broker", "bookie", "meta", "config", "replicator")
    files = {
        f"{name}_{part}": str(folder / f"{name}.{region}.{end}")
        for name in names
        for part, end in (("cert", "pem"), ("key", "key"))
    }
    return TlsSettings(
        **{
            "ca": str(folder / "ca.pem"),
            **files,
            "server_cert": files["broker_cert"],
            "server_key": files["broker_key"],
            **fields,
        }
    )


def inside(folder: Path, region: str = "us", **fields: Any) -> Certificates:
    return Certificates(settings(folder, region, internal=True, **fields), region)


async def echoed(listener: ssl.SSLContext, dialer: ssl.SSLContext) -> bool:
    """Whether one byte gets across and back."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(await reader.readexactly(1))
            await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        writer.close()

    server = await asyncio.start_server(echo, "127.0.0.1", 0, ssl=listener)
    try:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.sockets[0].getsockname()[1], ssl=dialer)
        writer.write(b"x")
        came = await asyncio.wait_for(reader.read(1), 60)
        writer.close()
        return came == b"x"
    except OSError:
        return False
    finally:
        server.close()


def met(
    listener: ssl.SSLContext, dialer: ssl.SSLContext, loop: Callable[[], asyncio.AbstractEventLoop] | None = None
) -> bool:
    with asyncio.Runner(loop_factory=loop) as runner:
        return runner.run(echoed(listener, dialer))


def both(listener: ssl.SSLContext | None, dialer: ssl.SSLContext | None, loop: Any = None) -> bool:
    assert listener is not None and dialer is not None
    return met(listener, dialer, loop)


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop])
def test_inside_a_region_only_the_roles_that_have_business_there_are_let_in(folder: Path, loop: Any) -> None:
    us, eu = inside(folder), inside(folder, "eu")
    bookie = us.listener("bookie", "broker")
    assert both(bookie, us.dialer("broker", "bookie"), loop)
    assert not both(bookie, us.dialer("replicator", "bookie"), loop)  # of this CA, but of another role
    assert not both(bookie, eu.dialer("broker", "bookie"), loop)  # of another region
    assert not both(bookie, us.dialer("broker", "meta"), loop)  # the caller wanted a metadata node, and this is none
    assert not both(bookie, inside(folder / "foreign").dialer("broker", "bookie"), loop)
    anonymous = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anonymous.check_hostname = False
    anonymous.load_verify_locations(folder / "ca.pem")
    assert not both(bookie, anonymous, loop)


def test_a_foreign_ca_is_no_ca(folder: Path) -> None:
    foreign = folder / "foreign"
    dialer = client_context(str(folder / "ca.pem"), str(foreign / "broker.us.pem"), str(foreign / "broker.us.key"))
    assert not both(inside(folder).listener("bookie", "broker"), dialer)


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion")
def test_clients_may_come_without_a_certificate_and_check_the_name(folder: Path) -> None:
    listener = Certificates(settings(folder), "us").for_clients()
    assert met(listener, ssl.create_default_context(cafile=str(folder / "ca.pem")))
    assert not met(listener, ssl.create_default_context(cafile=str(folder / "foreign" / "ca.pem")))
    old = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    assert not met(listener, old)


def test_each_role_has_a_pair_of_its_own(folder: Path) -> None:
    ca, cert, key = (str(folder / name) for name in ("ca.pem", "broker.us.pem", "broker.us.key"))
    given = TlsSettings(ca=ca, config_cert=cert, config_key=key, meta_cert=cert, meta_key=key)
    assert given.pair("config") == given.pair("meta") == (cert, key)
    assert TlsSettings(ca=ca, broker_cert=cert, broker_key=key).pair("broker") == (cert, key)
    with pytest.raises(ConfigError, match="broker_cert and broker_key are not set"):
        given.pair("broker")


def test_plain_where_nothing_is_set(folder: Path) -> None:
    assert Certificates(None, "us").listener("bookie", "broker") is None
    assert Certificates(settings(folder), "us").dialer("broker", "bookie") is None
    with pytest.raises(ConfigError, match="server_cert"):
        Certificates(None, "us").for_clients()
    with pytest.raises(ConfigError, match="bookie_cert"):
        Certificates(settings(folder, bookie_cert="", internal=True), "us").listener("bookie", "broker")
    with pytest.raises(ConfigError, match="does not exist"):
        settings(folder, bookie_cert="/nowhere.pem")


def seen(listener: ssl.SSLContext, folder: Path) -> bytes:
    """The certificate that the listener shows."""

    async def run() -> bytes:
        server = await asyncio.start_server(lambda r, w: w.close(), "127.0.0.1", 0, ssl=listener)
        _, writer = await asyncio.open_connection(
            "127.0.0.1",
            server.sockets[0].getsockname()[1],
            ssl=ssl.create_default_context(cafile=str(folder / "ca.pem")),
        )
        shown: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        writer.close()
        server.close()
        return shown

    return asyncio.run(run())


def test_a_new_certificate_counts_for_the_next_connection_and_a_broken_one_for_none(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    cert, key = tmp_path / "broker.us.pem", tmp_path / "broker.us.key"
    certificates = Certificates(settings(tmp_path), "us")
    listener = certificates.for_clients()
    first = seen(listener, tmp_path)
    cert.write_bytes((tmp_path / "bookie.us.pem").read_bytes())  # the other half is still missing
    certificates.tick()
    assert seen(listener, tmp_path) == first
    key.write_bytes((tmp_path / "bookie.us.key").read_bytes())
    certificates.tick()
    second = seen(listener, tmp_path)
    assert second == ssl.PEM_cert_to_DER_cert((tmp_path / "bookie.us.pem").read_text()) != first
    for broken in (b"", b"-----BEGIN CERTIFICATE-----\nAAAA"):
        cert.write_bytes(broken)
        certificates.tick()
        assert seen(listener, tmp_path) == second
    cert.unlink()
    certificates.tick()
    assert seen(listener, tmp_path) == second


def test_a_new_ca_is_trusted_without_a_restart(tmp_path: Path) -> None:
    """Its certificates get in as soon as the CA's file names it too; a file that cannot be read changes nothing."""
    old, new = tmp_path / "old", tmp_path / "new"
    ensure_certificates(old, ["us"])
    ensure_certificates(new, ["us"])
    both = (old / "ca.pem").read_text() + (new / "ca.pem").read_text()
    certificates = inside(old)
    listener = certificates.listener("bookie", "broker")
    assert listener is not None
    foreign = client_context(str(old / "ca.pem"), str(new / "broker.us.pem"), str(new / "broker.us.key"))
    assert not met(listener, foreign)
    (old / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA")
    certificates.tick()
    assert not met(listener, foreign)
    (old / "ca.pem").write_text(both)
    certificates.tick()
    assert met(listener, foreign)


def test_pages_of_other_brokers_are_asked_by_who_believes_the_instances_newest_ca_and_checks_names(
    tmp_path: Path,
) -> None:
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ensure_certificates(ours, ["us"])
    ensure_certificates(theirs, ["us"])
    certificates = Certificates(settings(ours), "us")
    outward, listener, other = (
        certificates.outward(),
        Certificates(settings(ours), "us").for_clients(),
        Certificates(settings(theirs), "us").for_clients(),
    )
    assert met(listener, outward()) and not met(other, outward()) and outward().check_hostname
    (ours / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\nAAAA")
    certificates.tick()
    assert met(listener, outward()), "a file that cannot be used changes nothing"
    (ours / "ca.pem").write_text((theirs / "ca.pem").read_text())
    certificates.tick()
    assert met(other, outward()) and not met(listener, outward())


def test_what_follows_files_is_told_until_it_can_use_them(tmp_path: Path) -> None:
    file, told = tmp_path / "ca.pem", list[str]()
    file.write_text("first")

    def renewed() -> None:
        told.append(file.read_text())
        if told[-1] == "broken":
            raise ConfigError("it cannot be used")

    certificates = Certificates(None, "us")
    certificates.follow((str(file),), renewed)
    for content, count in (("first", 0), ("broken", 1), ("broken", 2), ("second", 3), ("second", 3)):
        if file.read_text() != content:
            file.unlink()
            file.write_text(content)
        certificates.tick()
        assert len(told) == count, content


def test_the_watch_looks_by_itself_and_goes_on_whatever_it_meets(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    certificates = Certificates(settings(tmp_path, reload_s=0.1), "us")

    async def run() -> None:
        certificates.for_clients()
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: met.append(str(context["exception"])))
        met: list[str] = []
        ticked, stop = asyncio.Event(), certificates.watch()
        real = certificates.tick

        def tick() -> None:
            if not met:
                raise ValueError("something of a library")
            real()
            ticked.set()

        certificates.tick = tick  # type: ignore[method-assign]
        await asyncio.wait_for(ticked.wait(), 60)
        stop()
        assert met == ["something of a library"]

    asyncio.run(run())


# -- a CA that is taken out --------------------------------------------------------------------------------------------


class Standing:
    """One connection of a dialer to a listener, and how each of them takes a byte."""

    def __init__(self, listener: ssl.SSLContext | None, dialer: ssl.SSLContext | None) -> None:
        self._listener, self._dialer = listener, dialer

    async def __aenter__(self) -> Standing:
        accepted: asyncio.Future[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = (
            asyncio.get_running_loop().create_future()
        )
        self._server = await asyncio.start_server(
            lambda *both: accepted.set_result(both), "127.0.0.1", 0, ssl=self._listener
        )
        self.ours = await asyncio.open_connection(
            "127.0.0.1", self._server.sockets[0].getsockname()[1], ssl=self._dialer
        )
        self.theirs = await accepted
        return self

    async def __aexit__(self, *_: object) -> None:
        for _, writer in (self.ours, self.theirs):
            writer.close()
        self._server.close()

    async def carries(self) -> tuple[bool, bool]:
        """Whether a byte gets from the dialer to the listener, and back."""
        return await self._way(self.ours, self.theirs), await self._way(self.theirs, self.ours)

    async def _way(self, source: Any, target: Any) -> bool:
        try:
            source[1].write(b"x")
            return bool(await asyncio.wait_for(target[0].read(1), 60) == b"x")
        except OSError:
            return False


def in_steps(folder: Path) -> None:
    """Another CA, until only the last step is missing; both CAs are trusted."""
    certificate_renewal.another_authority(folder)
    certificate_renewal.renew(folder)


def test_what_is_read_together_is_of_each_other(tmp_path: Path) -> None:
    """Of a key's file only where the other one is not its: an old certificate may stand behind a key that was renewed
    in its own file alone.
    """
    ensure_certificates(tmp_path / "new", ["us"])
    ensure_certificates(tmp_path / "old", ["us"])
    new, old = (
        {end: (tmp_path / age / f"broker.us.{end}").read_bytes() for end in ("pem", "key")} for age in ("new", "old")
    )
    key = new["key"].removesuffix(new["pem"])
    ca, cert, secret = str(tmp_path / "new" / "ca.pem"), tmp_path / "cert.pem", tmp_path / "cert.key"
    for shown, kept in ((old["pem"], new["key"]), (new["pem"], key + old["pem"]), (new["pem"], key)):
        cert.write_bytes(shown), secret.write_bytes(kept)
        assert together(ca, str(cert), str(secret)) == (Path(ca).read_bytes(), new["pem"], kept)
    cert.write_bytes(old["pem"])
    with pytest.raises(ConfigError, match="cannot be used together"):
        together(ca, str(cert), str(secret))


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop])
@pytest.mark.parametrize("kind", ["inside", "clients", "links"])
def test_a_ca_that_is_taken_out_is_believed_no_more_on_connections_that_stand_and_on_new_ones(
    tmp_path: Path, kind: str, loop: Any
) -> None:
    ensure_certificates(tmp_path, ["us"])
    early = inside(tmp_path)

    def pair() -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
        files = str(tmp_path / "ca.pem"), str(tmp_path / "broker.us.pem"), str(tmp_path / "broker.us.key")
        if kind == "inside":
            return early.listener("bookie", "broker"), client_context(*files)
        return (early.for_clients() if kind == "clients" else early.keep(server_context, *files)), client_context(
            *files
        )

    async def run() -> None:
        listener, old = pair()
        assert listener is not None and old is not None
        async with Standing(listener, old) as before:
            assert await before.carries() == (True, True)
            in_steps(tmp_path)
            early.tick()
            assert await before.carries() == (True, True), "both CAs are trusted"
            old.load_verify_locations(tmp_path / "ca.pem")
            async with Standing(listener, old) as between:
                assert await between.carries() == (True, True)
                certificate_renewal.retire(tmp_path)
                assert await between.carries() == (True, True), "nothing was read yet"
                early.tick()
                assert (await between.carries())[0] is False and (await before.carries())[0] is False
                assert await between.carries() == (False, False)
        new = pair()[1]
        async with Standing(listener, new) as after:
            assert await after.carries() == (True, True)
        assert not await echoed(listener, old)

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(asyncio.wait_for(run(), 60))


def test_a_dialer_believes_a_retired_ca_no_more(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    theirs, ours = inside(tmp_path), inside(tmp_path)
    listener, dialer = theirs.listener("bookie", "broker"), ours.dialer("broker", "bookie")
    certificate_renewal.another_authority(tmp_path)
    theirs.tick()
    certificate_renewal.renew(tmp_path)
    ours.tick()
    assert both(listener, dialer), "it shows a certificate of the old CA, which is trusted still"
    certificate_renewal.retire(tmp_path)
    ours.tick()
    assert not both(listener, dialer)
    assert both(inside(tmp_path).listener("bookie", "broker"), dialer)


def test_a_file_of_cas_that_cannot_be_used_changes_nothing_and_is_looked_at_again(tmp_path: Path) -> None:
    ensure_certificates(tmp_path, ["us"])
    early = inside(tmp_path)
    listener = early.listener("bookie", "broker")
    old = client_context(str(tmp_path / "ca.pem"), str(tmp_path / "broker.us.pem"), str(tmp_path / "broker.us.key"))
    in_steps(tmp_path)
    early.tick()
    old.load_verify_locations(tmp_path / "ca.pem")
    whole = (tmp_path / "ca.pem").read_bytes()
    (tmp_path / "ca.pem").write_bytes(b"-----BEGIN CERTIFICATE-----\nAAAA")
    early.tick()
    assert both(listener, old)
    (tmp_path / "ca.pem").write_bytes(whole)
    certificate_renewal.retire(tmp_path)
    early.tick()
    assert not both(listener, old)


# -- a certificate that was revoked ------------------------------------------------------------------------------------


def serial_of(folder: Path, name: str) -> str:
    return format(x509.load_pem_x509_certificate((folder / f"{name}.us.pem").read_bytes()).serial_number, "x")


@pytest.mark.parametrize("loop", [None, uvloop.new_event_loop])
def test_a_revoked_certificate_is_shut_out_inside_and_what_stands_by_it_ends_at_its_next_byte(
    folder: Path, loop: Any
) -> None:
    async def test() -> None:
        us, peer = inside(folder), inside(folder)
        listener = us.listener("bookie", "broker", "bookie")
        async with (
            Standing(listener, peer.dialer("broker", "bookie")) as standing,
            Standing(listener, peer.dialer("bookie", "bookie")) as other,
        ):
            assert await standing.carries() == await other.carries() == (True, True)
            us.revoke(frozenset({serial_of(folder, "broker")}))
            assert not any(await standing.carries()) and await other.carries() == (True, True)
        assert not await echoed(listener, peer.dialer("broker", "bookie"))  # type: ignore[arg-type]
        assert await echoed(listener, peer.dialer("bookie", "bookie"))  # type: ignore[arg-type]
        late = us.listener("meta", "broker")  # a listener that is opened later
        assert not await echoed(late, peer.dialer("broker", "meta"))  # type: ignore[arg-type]
        us.revoke(frozenset())
        assert await echoed(listener, peer.dialer("broker", "bookie"))  # type: ignore[arg-type]

    with asyncio.Runner(loop_factory=loop) as runner:
        runner.run(test())


def test_a_dialer_believes_a_revoked_certificate_no_more(folder: Path) -> None:
    async def test() -> None:
        us, peer = inside(folder), inside(folder)
        listener, dialer = peer.listener("bookie", "broker"), us.dialer("broker", "bookie")
        async with Standing(listener, dialer) as standing:
            assert await standing.carries() == (True, True)
            us.revoke(frozenset({serial_of(folder, "bookie")}))
            assert not any(await standing.carries())
        assert not await echoed(listener, dialer)  # type: ignore[arg-type]

    asyncio.run(test())


def test_a_clients_revoked_certificate_comes_to_its_face_which_says_why(folder: Path) -> None:
    us = inside(folder)
    listener = us.for_clients()
    us.revoke(frozenset({serial_of(folder, "broker")}))
    files = (str(folder / "ca.pem"), str(folder / "broker.us.pem"), str(folder / "broker.us.key"))
    assert met(listener, client_context(*files))


def test_a_list_of_revoked_certificates_distrusts_no_intermediate(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A certificate that no CA of the file has signed itself is closed where a CA is taken out, and not for this."""

    async def test() -> None:
        us, peer = inside(folder), inside(folder)
        async with Standing(us.listener("bookie", "broker"), peer.dialer("broker", "bookie")) as standing:
            monkeypatch.setattr("region_node.security.ca_trust.signer", lambda leaf, roots: None)
            us.revoke(frozenset({"1"}))
            assert await standing.carries() == (True, True)

    asyncio.run(test())
