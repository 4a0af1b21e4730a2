"""Producers of no connection, for tests of who may produce."""

from __future__ import annotations

from region_node.topics.producers import AccessMode, Producer


class Sink:
    def producer_closed(self, producer: Producer) -> None: ...

    def producer_ready(self, producer: Producer) -> None: ...

    async def alive(self) -> bool:
        return True

    def hold_reading(self, hold: bool, reason: object = None) -> None: ...


def made(name: str, *, sink: Sink | None = None, mode: AccessMode = AccessMode.SHARED, **fields: object) -> Producer:
    return Producer(1, name, sink or Sink(), mode=mode, **fields)  # type: ignore[arg-type]
