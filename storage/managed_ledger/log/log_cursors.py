"""LogCursors: the cursors of a topic's log.

Is: making, finding, deleting them, and moving them over what nobody will acknowledge any more (`cursor_expiry` finds
how far). Isn't: what one has acknowledged (Cursor), or how it is stored (TopicRecord).
Invariants: a durable cursor is durable when `open_cursor` returns; one that was deleted frees what only it needed.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection

from heliograph.kv.metadata_store import check_key
from heliograph.model.errors import AlreadyExists, HeliographError, NotAllowed, NotFound, TopicClosed
from heliograph.model.positions import Position
from heliograph.wire.run import Run
from local_meta import keys
from storage.managed_ledger.cursors import cursor_expiry
from storage.managed_ledger.cursors.cursor import Cursor, check_properties
from storage.managed_ledger.log.log_pages import LogPages


class LogCursors(LogPages):
    """What `ManagedLedger` does with them."""

    __slots__ = ("_closed", "cursors", "failed")

    cursors: dict[str, Cursor]
    failed: HeliographError | None
    _closed: bool

    @abstractmethod
    def trim_soon(self) -> None:
        """Frees, in the background, the ledgers that nobody needs."""

    @abstractmethod
    async def read(self, position: Position, max_entries: int, max_bytes: int) -> list[tuple[int, int, Run]]:
        """Entries at or after a position; see `ManagedLedger`."""

    @property
    def ended(self) -> bool:
        """It was closed, or has failed."""
        return self._closed or self.failed is not None

    async def open_cursor(
        self, name: str, initial: Position, *, durable: bool = True, properties: dict[str, str] | None = None
    ) -> Cursor:
        """The cursor of that name, made where there is none with `initial` as its mark-delete position. Returns once it
        is durable, whoever made it.

        Raises NotAllowed where no write of it would be taken.
        """
        self._check_open()
        if initial < self.last_confirmed:
            await self.read_back_to(initial[0])
            self._check_open()
        cursor = self.cursors.get(name)
        if cursor is not None:
            if cursor.durable != durable:
                raise AlreadyExists(
                    f"{self.topic}: cursor {name} is there, and is {'durable' if cursor.durable else 'not durable'}"
                )
            if durable:  # somebody else may have it made just now
                await self._cursor_flushed(cursor)
            return cursor
        if durable:
            self._check_storable(name, properties or {})
        cursor = self.add_cursor(name, min(initial, self.last_confirmed), durable, properties or {})
        if durable:
            self._record.change_cursor(cursor)
            await self._record.written()
        return cursor

    def _check_storable(self, name: str, properties: dict[str, str]) -> None:
        """What the metadata refuses would close the topic, for everybody."""
        try:
            check_key(keys.cursor(self.topic, name))
        except NotAllowed as error:
            raise NotAllowed(f"the name of a subscription of {self.topic} cannot be stored: {error}") from error
        check_properties(properties)

    def add_cursor(self, name: str, mark_delete: Position, durable: bool, properties: dict[str, str]) -> Cursor:
        """Makes a cursor in memory only, or takes the place of one of that name; who loads or makes it has it
        stored.
        """
        self.cursors[name] = cursor = Cursor(
            name,
            self._catalog,
            mark_delete,
            durable=durable,
            properties=properties,
            request_flush=self._record.change_cursor,
            wait_flushed=self._cursor_flushed,
            settings=self._parts.cursor_settings,
        )
        self._record.cursor_there(name)
        return cursor

    async def delete_cursor(self, name: str) -> None:
        """Returns once the deletion of a durable cursor is durable; then what only it needed may be trimmed. Raises
        NotFound.
        """
        cursor = self.cursors.pop(name, None)
        if cursor is None:
            raise NotFound(f"{self.topic}: there is no cursor {name}")
        self._record.delete_cursor(cursor)
        if cursor.durable:
            await self._record.written()
        self.trim_soon()

    async def _cursor_flushed(self, cursor: Cursor) -> None:
        if self._record.waits(cursor):
            await self._record.written()
        if self.failed is not None:
            raise self.failed

    async def oldest_unacked_ms(self, name: str) -> int:
        """Broker time of the first entry that this cursor has not acknowledged; 0: there is none. Raises NotFound; what
        `read` raises.
        """
        return await cursor_expiry.oldest_unacked_ms(self, name)

    async def expire_before(self, time_ms: int, names: Collection[str]) -> dict[str, int]:
        """Moves these cursors over all that is older than that broker time. Returns how many entries each of them gave
        up, unacknowledged.
        """
        return await cursor_expiry.expire_before(self, time_ms, names)

    async def drop_to(self, size_bytes: int, names: Collection[str]) -> dict[str, int]:
        """Moves these cursors until at most about so many bytes lie before each. Returns how many entries each of them
        gave up, unacknowledged.
        """
        return await cursor_expiry.drop_to(self, size_bytes, names)

    def _check_open(self) -> None:
        if self.failed is not None:
            raise self.failed
        if self._closed:
            raise TopicClosed(f"{self.topic} is closed")
