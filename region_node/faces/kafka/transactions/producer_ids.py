"""Producer ids: numbers that are given to idempotent producers, once in the region.

Is: blocks of a counter in the region's metadata. Isn't: sequences (`producer_sequences`).
Invariants: no number is given twice, also after a crash: what is left of a block is lost with its broker; nor by
metadata that is an older copy, or was made anew: each block begins at the wall clock, in milliseconds, or above it.
Source: Kafka KIP-98; docs/protocols/kafka.md, "Producers".
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import Clock
from heliograph.wire.kafka.message_codec import Fields, Request
from region_node.faces.kafka.error_codes import Code, Refused
from region_node.faces.kafka.transactions.transaction_requests import opened

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_connection import KafkaConnection

COUNTER = "kafka-producer-ids"
_BLOCK = 1000
_CLOCK_MAX_MS = 1 << 43
"""A clock that is further is wrong, and would lead into the bits of the region: the year 2248."""
_EPOCH_MAX = (1 << 15) - 1


class ProducerIds:
    """Gives ids from blocks of the region's counter. `region`: its number, in the bits from 44 up, so that regions
    never give the same.
    """

    def __init__(self, meta: MetadataStore, region: Callable[[], int], clock: Clock) -> None:
        self._meta, self._region, self._clock = meta, region, clock
        self._next = self._end = 0

    async def next(self) -> int:
        """Raises what the metadata raises."""
        if self._next >= self._end:
            first = await self._meta.next_ids(COUNTER, _BLOCK, at_least=min(self._clock.wall_ms(), _CLOCK_MAX_MS))
            if first >= self._end:  # another request may have fetched a later block meanwhile
                self._next, self._end = first, first + _BLOCK
        given = self._next
        self._next += 1
        return self._region() << 44 | given


async def init_producer_id(connection: KafkaConnection, request: Request) -> Fields:
    fields, broker = request.fields, connection.broker
    try:
        if fields["transactional_id"] is not None:
            given = await opened(connection).begin_producer(
                fields["transactional_id"],
                fields["transaction_timeout"],
                fields.get("producer_id", -1),
                fields.get("producer_epoch", -1),
                connection.login.principal,
            )
            return {"error_code": 0, "producer_id": given[0], "producer_epoch": given[1]}
        connection.gate.somewhere(request, Code.CLUSTER_AUTHORIZATION_FAILED)
        number, epoch = fields.get("producer_id", -1), fields.get("producer_epoch", -1)
        if number >= 0 and 0 <= epoch < _EPOCH_MAX - 1:  # it begins its sequences anew, and is still itself
            return {"error_code": 0, "producer_id": number, "producer_epoch": epoch + 1}
        return {"error_code": 0, "producer_id": await broker.producer_ids.next(), "producer_epoch": 0}
    except HeliographError as error:
        code = error.code if isinstance(error, Refused) else Code.COORDINATOR_NOT_AVAILABLE
        if code == Code.PRODUCER_FENCED and request.version < 4:
            code = Code.INVALID_PRODUCER_EPOCH
        return {"error_code": code, "producer_id": -1, "producer_epoch": -1}
