"""Transactions of the simulated clients: a coordinator as they see it, and a producer that publishes in transactions.

Is: what official clients do: find the coordinator's broker, ask again whatever was not answered, add topics before
anything is published there, drop what is refused as its transaction has ended.
Isn't: the choice of what to publish, or when to end (`transacted`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from geo_tests.sim.pulsar_client import Client, Connection, Pending, Producer, Refused, encode_entry
from heliograph.wire.pulsar import pulsar_pb2 as pb
from heliograph.wire.pulsar.pulsar_pb2 import BaseCommand

TxnId = tuple[int, int]
"""(coordinator, number): the most, and the least bits."""
COORDINATOR = "persistent://pulsar/system/transaction_coordinator_assign-partition-"
_FINAL = (pb.InvalidTxnStatus, pb.TransactionNotFound, pb.NotAllowedError, pb.TransactionConflict)


class Ended(Exception):
    """The coordinator says that it cannot be: the transaction has ended, or ends, otherwise, or is not known (any
    more).
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.known = code != pb.TransactionNotFound


class Coordinator:
    """One coordinator of a region; who asks waits until it answers."""

    def __init__(self, client: Client, number: int) -> None:
        self._client, self._number = client, number
        self._connection: Connection | None = None
        self.last_error = ""

    async def begin(self, ttl_ms: int) -> TxnId:
        command = BaseCommand(type=BaseCommand.NEW_TXN)
        command.newTxn.tc_id, command.newTxn.txn_ttl_millis = self._number, ttl_ms
        told = await self._ask(command, "newTxn")
        return told.txnid_most_bits, told.txnid_least_bits

    async def add(self, txn: TxnId, topics: list[str]) -> None:
        """Raises Ended."""
        command = BaseCommand(type=BaseCommand.ADD_PARTITION_TO_TXN)
        part = command.addPartitionToTxn
        part.txnid_most_bits, part.txnid_least_bits = txn
        part.partitions.extend(topics)
        await self._ask(command, "addPartitionToTxn")

    async def end(self, txn: TxnId, *, commit: bool) -> None:
        """Returns once every topic has it. Raises Ended."""
        command = BaseCommand(type=BaseCommand.END_TXN)
        part = command.endTxn
        part.txnid_most_bits, part.txnid_least_bits = txn
        part.txn_action = pb.COMMIT if commit else pb.ABORT
        await self._ask(command, "endTxn")

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()

    async def _ask(self, command: BaseCommand, part: str) -> Any:
        while True:
            try:
                if self._connection is None or self._connection.lost:
                    self._connection = await self._found()
                answer = getattr(await self._connection.ask(command, getattr(command, part)), f"{part}Response")
                if not answer.HasField("error"):
                    return answer
                if answer.error in _FINAL:
                    raise Ended(answer.error, answer.message)
                self.last_error = answer.message
            except (OSError, TimeoutError, Refused) as error:
                self.last_error = repr(error)
            self.close()
            await self._client.pause()

    async def _found(self) -> Connection:
        connection = await self._client.open(f"{COORDINATOR}{self._number}")
        command = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
        command.tcClientConnectRequest.tc_id = self._number
        try:
            answer = await connection.ask(command, command.tcClientConnectRequest)
            if answer.tcClientConnectResponse.HasField("error"):
                raise Refused(answer.tcClientConnectResponse.message)
        except BaseException:
            connection.close()
            raise
        return connection


@dataclass
class PendingInTransaction(Pending):
    txn: TxnId


class TransactionalProducer(Producer):
    """A named producer of which some messages are in transactions. on_refused: one is given up, as its transaction has
    ended.
    """

    def __init__(
        self,
        client: Client,
        topic: str,
        name: str,
        on_receipt: Callable[[int, int, int], None],
        on_refused: Callable[[int], None],
    ) -> None:
        super().__init__(client, topic, name, on_receipt)
        self._on_refused = on_refused

    def send_in(self, txn: TxnId, sequence: int, payload: bytes) -> None:
        entry = encode_entry(self.shown, sequence, payload, 1, txn)
        self._put(PendingInTransaction(sequence, payload, entry, txn))

    def _as_sent(self, item: Pending) -> BaseCommand:
        command = super()._as_sent(item)
        if isinstance(item, PendingInTransaction):
            command.send.txnid_most_bits, command.send.txnid_least_bits = item.txn
        return command

    def _on_command(self, command: BaseCommand) -> None:
        if command.type == BaseCommand.SEND_ERROR and command.send_error.error == pb.NotAllowedError:
            sequence = command.send_error.sequence_id
            given_up = [item for item in self.pending if item.sequence == sequence]
            if given_up and isinstance(given_up[0], PendingInTransaction):
                self.pending.remove(given_up[0])
                self._on_refused(sequence)
                return
        super()._on_command(command)
