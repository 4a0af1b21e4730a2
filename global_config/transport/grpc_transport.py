"""GrpcTransport: the configuration's nodes over gRPC with mutual TLS.

Is: one server, and one channel a peer; Raft messages go over one stream a peer behind a bounded queue, forwarded
requests as calls.
Isn't: reliable for Raft messages: what doesn't fit the queue or was under way when a stream broke is lost, and Raft
sends again.
Invariants: under TLS both sides prove `config.{region}` by a certificate of the instance's CA: a caller's messages are
taken only under its own name, and a peer that is reached (maybe through a proxy) must be the one that was meant.
Without TLS it refuses to listen on other than loopback. Methods, raw bytes, no generated code:

    /heliograph.config.v1.Config/Raft      stream of: u8 version (1) · u8 size of the sender's name · name · message
                                           -> one empty answer
                                           version 2, of nodes that joined later: … name · u16 size of its address ·
                                           address · message
    /heliograph.config.v1.Config/Forward   u8 version (1) · request  ->  u8 version (1) · answer

This module imports grpc; import it where it is needed, not before.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio
from cryptography import x509

from global_config.transport.certificate_authorities import leads_to
from global_config.transport.config_transport import ForwardHandler, MemberRefused
from heliograph.model.errors import ConfigError, MetadataUnavailable, OutcomeUnknown, PeerError
from heliograph.raft.membership import Addresses
from heliograph.raft.messages import Config
from heliograph.runtime.backoff import Backoff
from heliograph.runtime.clock import Rng
from heliograph.runtime.task_set import cancel_all

VERSION = 1
WITH_ADDRESS = 2
SERVICE = "heliograph.config.v1.Config"
MESSAGE_BYTES_MAX = 8 << 20
QUEUE_BYTES_MAX = 16 << 20
_BACKOFF = Backoff(0.1, 2.0)
CALLS_MAX = 256
_JUDGED_MAX = 64

HANDSHAKE_MS = 10_000
"""Within this time, a caller has proven who it is; else its connection is ended."""
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 5_000),
    ("grpc.keepalive_timeout_ms", 3_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.http2.min_ping_interval_without_data_ms", 4_000),
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 2_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.so_reuseport", 0),
    ("grpc.enable_retries", 0),
    ("grpc.initial_reconnect_backoff_ms", int(_BACKOFF.first_s * 1000)),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.max_reconnect_backoff_ms", int(_BACKOFF.longest_s * 1000)),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTls:
    """PEM bytes: the instance's CA, and this node's certificate and key, which prove `config.{region}`."""

    ca: bytes
    cert: bytes
    key: bytes


def _server_side(tls: ConfigTls) -> Any:
    return grpc.ssl_server_certificate_configuration([(tls.key, tls.cert)], root_certificates=tls.ca)


def identity(node: str) -> str:
    """The name that a node's certificate must carry."""
    return f"config.{node}"


class GrpcTransport:
    """Implements ConfigTransport. peers: node id -> `host:port` at which this node reaches it."""

    def __init__(
        self,
        node_id: str,
        peers: Mapping[str, str],
        *,
        rng: Rng,
        host: str = "127.0.0.1",
        port: int = 0,
        tls: ConfigTls | None = None,
        handshake_ms: int = HANDSHAKE_MS,
    ) -> None:
        if tls is None and host not in ("127.0.0.1", "localhost", "::1"):
            raise ConfigError(
                f"the configuration's Raft port binds {host} without certificates: give tls.config_cert, or bind "
                "127.0.0.1"
            )
        self.node_id, self.host, self.port, self._tls, self._rng = node_id, host, port, tls, rng
        self._handshake_ms = handshake_ms
        self.addresses = Addresses(node_id, peers)
        self._peers: dict[str, _Peer] = {}
        self._server: Any = None
        self._callback: Callable[[str, bytes], None] = lambda sender, message: None
        self._handler: ForwardHandler | None = None
        self._running = False
        self._shown = tls  # what the listener presents and trusts
        self._members: tuple[str, ...] = ()
        self._roots: list[x509.Certificate] = []
        """CAs that are trusted since the last `renew`."""
        self._retired: list[x509.Certificate] = []
        """CAs that were trusted since this transport began, and are not any more; where there are any, those who were
        let in are judged again.
        """
        self._revoked: frozenset[str] = frozenset()
        """Serial numbers of certificates, in hexadecimal."""
        self._judged: dict[bytes, bool] = {}
        """What a peer has shown (PEM) -> whether it is trusted, since the last `renew` or `revoke`."""
        self._leaving: set[asyncio.Task[None]] = set()

    async def start(self) -> int:
        options = [*_OPTIONS, ("grpc.server_handshake_timeout_ms", self._handshake_ms)]
        self._server = grpc.aio.server(options=options, maximum_concurrent_rpcs=CALLS_MAX)
        handlers = {
            "Raft": grpc.stream_unary_rpc_method_handler(self._on_raft),
            "Forward": grpc.unary_unary_rpc_method_handler(self._on_forward),
        }
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        address = f"{self.host}:{self.port}"
        try:
            if self._tls is None:
                port = self._server.add_insecure_port(address)
            else:
                self._shown = self._tls
                credentials = grpc.dynamic_ssl_server_credentials(
                    _server_side(self._tls), self._renewed, require_client_authentication=True
                )
                port = self._server.add_secure_port(address, credentials)
        except RuntimeError as error:
            raise ConfigError(
                f"the configuration's Raft port {address} cannot be bound (is it taken?): {error}"
            ) from error
        if not port:
            raise ConfigError(f"the configuration's Raft port {address} cannot be bound: is it taken?")
        self.port = port
        await self._server.start()
        self._running = True
        return self.port

    async def stop(self) -> None:
        self._running = False
        for peer in self._peers.values():
            await peer.stop()
        self._peers = {}
        await asyncio.gather(*self._leaving)
        if self._server is not None:
            await self._server.stop(grace=None)

    def renew(self, tls: ConfigTls) -> None:
        """Other certificates, or another CA: for the next connections, which are made anew to every peer. Raises
        ConfigError; then all stays as it was.
        """
        assert self._tls is not None, "this transport speaks plainly"
        try:
            self._roots, before = (x509.load_pem_x509_certificates(each.ca) for each in (tls, self._tls))
        except ValueError as error:
            raise ConfigError(f"the configuration's file of CAs cannot be used: {error}") from error
        self._retired = [root for root in {*self._retired, *before} if root not in self._roots]
        self._judged.clear()
        self._tls = tls
        for to in list(self._peers):
            self._drop(to)
            self._peer(to)

    def revoke(self, serials: frozenset[str]) -> None:
        """serials: of all certificates that are revoked now, in hexadecimal. Whoever shows one is nobody from here on,
        with the next message of a connection that stands.
        """
        self._revoked = serials
        self._judged.clear()

    def _renewed(self) -> Any:
        """Asked by gRPC, on a thread of its own, with each handshake. None: as before."""
        if self._shown is self._tls or self._tls is None:
            return None
        self._shown = self._tls
        return _server_side(self._tls)

    def send(self, to: str, message: bytes) -> None:
        peer = self._peer(to)
        if peer is not None:
            peer.send(message)

    def on_config(self, config: Config) -> None:
        self.addresses.learn(config)
        self._members = config.members
        for member in config.members:
            self._peer(member)  # so that a connection is there before a request needs it

    def _peer(self, to: str) -> _Peer | None:
        address, peer = self.addresses.of(to), self._peers.get(to)
        if peer is not None and peer.address == address:
            return peer
        if peer is not None:  # it has moved
            self._drop(to)
        if address and to != self.node_id and self._running:
            peer = self._peers[to] = _Peer(self, to, address)
            return peer
        return None

    def _drop(self, to: str) -> None:
        leaving = asyncio.get_running_loop().create_task(self._peers.pop(to).stop())
        self._leaving.add(leaving)
        leaving.add_done_callback(self._leaving.discard)

    def on_receive(self, callback: Callable[[str, bytes], None]) -> None:
        self._callback = callback

    async def forward(self, to: str, request: bytes, *, timeout_s: float) -> bytes:
        peer = self._peer(to)
        if peer is None:
            raise MetadataUnavailable(f"the configuration node {to!r} is not known here")
        return await peer.forward(request, timeout_s)

    def on_forward(self, handler: ForwardHandler) -> None:
        self._handler = handler

    def channel(self, peer: str, address: str) -> Any:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials = grpc.ssl_channel_credentials(self._tls.ca, self._tls.key, self._tls.cert)
        options = [*_OPTIONS, ("grpc.ssl_target_name_override", identity(peer))]
        return grpc.aio.secure_channel(address, credentials, options=options)

    def pause_s(self, failures: int) -> float:
        return _BACKOFF.pause_s(failures, self._rng)

    # -- the server's side ---------------------------------------------------------------------------------------------

    async def _on_raft(self, messages: AsyncIterator[bytes], context: Any) -> bytes:
        try:
            async for blob in messages:
                sender, message, address = open_message(blob)
                if not self._proves(context, sender) or not self.addresses.hear(sender, address):
                    await context.abort(
                        grpc.StatusCode.PERMISSION_DENIED,
                        f"{sender!r} is no configuration node, or its certificate is another's",
                    )
                self._callback(sender, message)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        except asyncio.CancelledError:  # the peer went, or this server stops; gRPC would print a traceback for it
            pass
        return b""

    async def _on_forward(self, blob: bytes, context: Any) -> bytes:
        proven = [peer for peer in self._members or self.addresses.known() if self._proves(context, peer)]
        if not proven:
            await context.abort(
                grpc.StatusCode.PERMISSION_DENIED, "the certificate is none of a member of the configuration"
            )
        if not blob or blob[0] != VERSION or self._handler is None:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "a request of another version")
        assert self._handler is not None
        try:
            return bytes([VERSION]) + await self._handler(blob[1:], () if self._tls is None else proven)
        except PeerError as error:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
            raise

    def _proves(self, context: Any, node: str) -> bool:
        if self._tls is None:
            return True
        proof = context.auth_context()
        return identity(node).encode() in proof.get("x509_subject_alternative_name", ()) and self._trusts(proof)

    def _trusts(self, proof: Mapping[str, Sequence[bytes]]) -> bool:
        """Not where its chain leads to no CA of today: the connection was let in while one was trusted that was taken
        out since; nor where it was revoked.
        """
        if not self._retired and not self._revoked:
            return True
        shown = b"".join(
            (*proof["x509_pem_cert"], *proof.get("x509_pem_cert_chain", ()))
        )  # the chain may begin with the leaf, or behind it
        if shown not in self._judged:
            if len(self._judged) >= _JUDGED_MAX:
                self._judged.clear()
            chain = list(dict.fromkeys(x509.load_pem_x509_certificates(shown)))
            self._judged[shown] = format(chain[0].serial_number, "x") not in self._revoked and (
                not self._retired or leads_to(chain, self._roots)
            )
        return self._judged[shown]


def make_message(sender: str, message: bytes, address: str = "") -> bytes:
    name, where = sender.encode(), address.encode()
    if not where:
        return bytes([VERSION, len(name)]) + name + message
    return bytes([WITH_ADDRESS, len(name)]) + name + len(where).to_bytes(2, "big") + where + message


def open_message(blob: bytes) -> tuple[str, bytes, str]:
    """(sender, message, address or empty). Raises PeerError."""
    if len(blob) < 2 or blob[0] not in (VERSION, WITH_ADDRESS) or len(blob) < 2 + blob[1]:
        raise PeerError("configuration: a Raft message of another version, or cut short")
    end = 2 + blob[1]
    name, address = blob[2:end].decode("utf-8", "replace"), b""
    if blob[0] == WITH_ADDRESS:
        size = int.from_bytes(blob[end : end + 2], "big")
        address = blob[end + 2 : end + 2 + size]
        end += 2 + size
        if len(address) != size or len(blob) < end:
            raise PeerError("configuration: the address in a Raft message is cut short")
    return name, blob[end:], address.decode("utf-8", "replace")


class _Peer:
    """The way to one other node: a channel, one stream of Raft messages, forwarded calls."""

    def __init__(self, owner: GrpcTransport, peer: str, address: str) -> None:
        self._owner, self._peer, self.address = owner, peer, address
        self._channel = owner.channel(peer, address)
        self._raft = self._channel.stream_unary(f"/{SERVICE}/Raft")
        self._forward = self._channel.unary_unary(f"/{SERVICE}/Forward")
        self._queue: list[bytes] = []
        self._queue_bytes = 0
        self._filled = asyncio.Event()
        self._task = asyncio.get_running_loop().create_task(self._stream())

    def send(self, message: bytes) -> None:
        if self._queue_bytes + len(message) <= QUEUE_BYTES_MAX and len(message) < MESSAGE_BYTES_MAX - 4096:
            self._queue.append(message)
            self._queue_bytes += len(message)
            self._filled.set()

    async def forward(self, request: bytes, timeout_s: float) -> bytes:
        if self._channel.get_state(try_to_connect=True) != grpc.ChannelConnectivity.READY:
            raise MetadataUnavailable(f"there is no connection to the configuration's leader in {self._peer!r}")
        try:
            answer: bytes = await self._forward(bytes([VERSION]) + request, timeout=timeout_s)
        except grpc.aio.AioRpcError as error:
            text = (
                f"the configuration's leader in {self._peer!r} gave no answer: "
                f"{error.code().name.lower().replace('_', ' ')}"
            )
            if error.code() in (
                grpc.StatusCode.PERMISSION_DENIED,
                grpc.StatusCode.INVALID_ARGUMENT,
                grpc.StatusCode.RESOURCE_EXHAUSTED,
            ):
                raise MemberRefused(f"{text}: {error.details()}") from error
            raise OutcomeUnknown(text) from error
        except asyncio.CancelledError:
            if (task := asyncio.current_task()) is None or task.cancelling():
                raise
            raise OutcomeUnknown(f"the connection to the configuration's leader in {self._peer!r} was ended") from None
        if not answer or answer[0] != VERSION:
            raise OutcomeUnknown(f"the configuration's leader in {self._peer!r} answered in another version")
        return answer[1:]

    async def stop(self) -> None:
        await cancel_all([self._task])
        await self._channel.close()

    async def _stream(self) -> None:
        """Sends what is queued over one stream; after an error a new one, with backoff."""
        failures = 0
        while True:
            began = asyncio.get_running_loop().time()
            call = self._raft()
            try:
                while True:
                    await self._filled.wait()
                    self._filled.clear()
                    queue, self._queue, self._queue_bytes = self._queue, [], 0
                    for message in queue:
                        await call.write(make_message(self._owner.node_id, message, self._owner.addresses.own))
            except (grpc.aio.AioRpcError, asyncio.InvalidStateError, grpc.aio.UsageError):
                pass
            finally:
                call.cancel()
            self._queue, self._queue_bytes = [], 0  # old messages help nobody
            if asyncio.get_running_loop().time() - began > 2 * _BACKOFF.longest_s:
                failures = 0
            failures += 1
            await asyncio.sleep(self._owner.pause_s(failures))
