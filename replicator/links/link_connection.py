"""LinkConnection: one connection to a broker of another region, shared by the links of all topics that it owns.

Is: streams by number, heartbeats, what the other side's clock says, and which links wait until it can be written again.
Isn't: a decision about a topic (`replicator.sending.link_sender`), or the making of connections
(`replicator.manager.link_manager`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Any, Protocol

from heliograph.client.pulsar_connection import Address, BrokerConnection
from heliograph.model.coordinates import Origin, Vector
from heliograph.model.errors import HeliographError, PeerError
from heliograph.model.positions import Position
from heliograph.runtime.clock import Clock
from heliograph.wire.links import link_commands as wire
from heliograph.wire.links.audit_commands import Ask, read_ask, read_tell
from heliograph.wire.links.link_commands import LinkFrameKind, LinkHeartbeat, Risk, StreamBeat
from heliograph.wire.links.schema_commands import SchemaRow, close_rows
from heliograph.wire.links.unopened_topics import UnopenedTopics
from heliograph.wire.run import Buffer
from replicator.bandwidth.fair_shares import SHARE_BYTES, FairShares
from replicator.health.incoming_stats import Heard
from replicator.health.link_causes import Cause
from replicator.health.round_trips import RoundTrips
from replicator.subscriptions.ack_claims import Claims, read_claims

_JOIN_BELOW = 1 << 16
"""Smaller buffers, on average, go as one: by TLS each would be a record of its own, to encrypt here and to decrypt
there.
"""
Key = tuple[str, Address]
"""(target region, where its broker listens)."""


class Stream(Protocol):
    """What a link does with what comes back."""

    def on_opened(self, incarnation: int, window_bytes: int, vector: Vector, level: int) -> None: ...

    def on_claims(self, subscription: str, claims: Claims) -> None: ...

    def on_ask(self, request: int, ask: Ask) -> None: ...

    def on_tell(self, request: int, fields: list[Any], payload: Buffer) -> None: ...

    def on_receipt(self, through: Sequence[tuple[Origin, Position]]) -> None: ...

    def on_gap(self, attempt: int, vector: Vector) -> None: ...

    def on_ended(self, cause: Cause, text: str, rows: Sequence[SchemaRow] = ()) -> None: ...

    @property
    def live(self) -> bool: ...

    @property
    def weight(self) -> int: ...

    def on_share(self, upto_bytes: int) -> None: ...

    def beat(self) -> tuple[tuple[Origin, Position], dict[str, Vector], Risk] | None: ...

    def on_beat(self, vectors: dict[str, Vector]) -> None: ...


class LinkConnection:
    """`on_ended(connection)`: called once, after every stream heard of it. level: the feature level that the target is
    told.
    """

    def __init__(
        self,
        key: Key,
        client: BrokerConnection,
        clock: Clock,
        on_ended: Callable[[LinkConnection], None],
        soon: Callable[[Callable[[], None]], None],
        level: int = wire.FEATURE_LEVEL,
    ) -> None:
        self.key, self._client, self._clock, self._on_ended, self._soon = key, client, clock, on_ended, soon
        self.streams: dict[int, Stream] = {}
        self.heard = Heard(clock.monotonic)
        self.way = RoundTrips()
        self._numbers, self._level = 0, level
        self._shares: FairShares[Stream] = FairShares()
        self._changed: dict[int, None] = {}
        """Streams that may have something new to tell."""
        self._echo_ms = 0
        self._echo_at = 0.0
        self._beat_at = -inf
        client.on_private, client.on_closed, client.on_writable = self._on_frame, self._on_closed, self._on_writable

    @property
    def closed(self) -> bool:
        return self._client.closed is not None

    @property
    def client(self) -> BrokerConnection:
        return self._client

    def open(self, stream: Stream, topic: str, source: str, source_number: int) -> int:
        """Returns the stream's number; `on_opened` or `on_ended` follows."""
        self._numbers += 1
        self.streams[self._numbers] = stream
        self._client.write(wire.open_frame(self._numbers, topic, source, source_number, self._level))
        return self._numbers

    def close_stream(self, number: int, cause: Cause, text: str) -> None:
        """The stream hears nothing more."""
        if (stream := self.streams.pop(number, None)) is not None:
            self._shares.forget(stream)
            self._client.write(wire.close_frame(number, cause, text))

    def write(self, buffers: Sequence[Buffer]) -> None:
        if len(buffers) > 1 and sum(map(len, buffers)) < _JOIN_BELOW * len(buffers):
            buffers = [b"".join(buffers)]
        self._client.write(buffers)

    def writable(self, number: int) -> bool:
        """Says whether the stream may write now; where it may not, `on_share` follows once it may."""
        if self._client.writable:
            return True
        self._shares.wait(self.streams[number])
        return False

    @property
    def crowded(self) -> bool:
        """Whether other streams wait for their share."""
        return len(self._shares) > 0

    def touch(self, number: int) -> None:
        """The next heartbeat asks the stream what is new."""
        self._changed[number] = None

    def wait(self, number: int) -> None:
        """The stream has more to send than it may at once: its share comes again."""
        self._shares.wait(self.streams[number])
        if self._client.writable:
            self._soon(self._on_writable)

    def close(self, error: HeliographError) -> None:
        self._client.close(error)

    # -- heartbeats ----------------------------------------------------------------------------------------------------

    def beat(self, unopened: UnopenedTopics | None = None) -> None:
        """Sends a heartbeat, with `unopened` and what the touched streams have to tell. Called each `heartbeat_s`. What
        is more than a frame takes goes in further ones while the connection can be written; the rest waits for the next
        call.

        A target is heard also in the middle of a large frame: that is looked up here, where no frame came since the
        last heartbeat. It was since then, at a time that nobody noted: a silence is not told shorter than it is.
        """
        if self._client.heard:
            self._client.heard = False
            self.heard.bytes_since(self._beat_at)
        self._beat_at = self._clock.monotonic()
        age_ms = int((self._clock.monotonic() - self._echo_at) * 1000) if self._echo_ms else 0
        beat = LinkHeartbeat(self._clock.wall_ms(), self._echo_ms, age_ms, self._told(), unopened)
        self._client.write(wire.heartbeat_frame(beat))
        while self._changed and self._client.writable:
            self._client.write(wire.heartbeat_frame(LinkHeartbeat(0, 0, 0, self._told())))

    def _told(self) -> tuple[StreamBeat, ...]:
        """What one frame takes of it. Those for which it has no room stay, in front of what is touched from now on."""
        streams, size_bytes = [], 0
        changed, self._changed = self._changed, {}
        for number in changed:
            if size_bytes >= wire.HEARTBEAT_BYTES:
                self._changed[number] = None
            elif (stream := self.streams.get(number)) is not None and (told := stream.beat()) is not None:
                streams.append(StreamBeat(number, *told))
                size_bytes += streams[-1].size_bytes
        return tuple(streams)

    def _on_beat(self, beat: LinkHeartbeat) -> None:
        now = self._clock.wall_ms()
        self._echo_ms, self._echo_at = beat.wall_ms, self._clock.monotonic()
        self.way.heard(beat, now, self._echo_at)
        for told in beat.streams:
            if (stream := self.streams.get(told.stream)) is not None:
                stream.on_beat(told.vectors)

    # -- what comes back -----------------------------------------------------------------------------------------------

    def _on_frame(self, number: int, content: memoryview, payload: memoryview) -> None:
        self.heard.bytes()
        kind, fields = wire.parse(number, content)
        if kind is LinkFrameKind.TELL:
            self._tell(fields, payload)
            return
        handler = _HANDLERS.get(kind)
        if handler is None:
            raise PeerError(f"link: {kind.name} is no command of a receiver")
        handler(self, fields)

    def _receipt(self, fields: list[Any]) -> None:
        number, through = wire.read_receipt(fields)
        if (stream := self.streams.get(number)) is not None:
            stream.on_receipt(through)

    def _opened(self, fields: list[Any]) -> None:
        number, incarnation, window, vector, level = wire.read_opened(fields)
        if (stream := self.streams.get(number)) is not None:
            stream.on_opened(incarnation, window, vector, level)

    def _claims(self, fields: list[Any]) -> None:
        number, subscription, content = wire.read_claims(fields)
        claims = read_claims(content)
        if (stream := self.streams.get(number)) is not None:
            stream.on_claims(subscription, claims)

    def _ask(self, fields: list[Any]) -> None:
        number, request, ask = read_ask(fields)
        if (stream := self.streams.get(number)) is not None:
            stream.on_ask(request, ask)

    def _tell(self, fields: list[Any], payload: Buffer) -> None:
        number, request, content, payload = read_tell(fields, payload)
        if (stream := self.streams.get(number)) is not None:
            stream.on_tell(request, content, payload)

    def _gap(self, fields: list[Any]) -> None:
        number, attempt, vector = wire.read_gap(fields)
        if (stream := self.streams.get(number)) is not None:
            stream.on_gap(attempt, vector)

    def _close(self, fields: list[Any]) -> None:
        number, cause, text = wire.read_close(fields)
        if (stream := self.streams.pop(number, None)) is not None:
            self._shares.forget(stream)
            stream.on_ended(Cause.parse(cause), text, close_rows(fields))

    def _heartbeat(self, fields: list[Any]) -> None:
        self._on_beat(wire.read_heartbeat(fields))

    def _on_closed(self, error: HeliographError) -> None:
        streams, self.streams = self.streams, {}
        self._shares = FairShares()
        cause = Cause.of(error)
        for stream in streams.values():
            stream.on_ended(cause, str(error))
        self._on_ended(self)

    def _on_writable(self) -> None:
        while self._client.writable and (stream := self._shares.next()) is not None:
            stream.on_share(SHARE_BYTES * stream.weight)


_HANDLERS: dict[LinkFrameKind, Callable[[LinkConnection, list[Any]], None]] = {
    LinkFrameKind.RECEIPT: LinkConnection._receipt,
    LinkFrameKind.OPENED: LinkConnection._opened,
    LinkFrameKind.GAP: LinkConnection._gap,
    LinkFrameKind.CLOSE: LinkConnection._close,
    LinkFrameKind.HEARTBEAT: LinkConnection._heartbeat,
    LinkFrameKind.CLAIMS: LinkConnection._claims,
    LinkFrameKind.ASK: LinkConnection._ask,
}
