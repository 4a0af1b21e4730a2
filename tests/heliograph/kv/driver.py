"""Commands for the key-value machine, one after another."""

from __future__ import annotations

from typing import Any

from heliograph.kv.machine_commands import CommandKind, command, open_answer, txn_fields
from heliograph.kv.metadata_store import Op
from heliograph.kv.state_machine import KvMachine


class Driver:
    """Applies commands one behind another."""

    def __init__(self, machine: KvMachine | None = None) -> None:
        self.machine = KvMachine() if machine is None else machine  # an empty one is false
        self.log: list[bytes] = []

    def run(self, kind: CommandKind, fields: list[Any], **session: int) -> list[Any]:
        self.log.append(command(kind, fields, **session))
        return open_answer(self.machine.apply(self.machine.index + 1, self.log[-1]))

    def txn(self, *ops: Op, **session: int) -> int:
        version: int = self.run(CommandKind.TXN, txn_fields(ops), **session)[0]
        return version
