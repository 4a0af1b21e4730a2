"""Rows as hashes of a Redis server: `PREFIX TABLE : key : key`, one field a column; of wide tables the first key is the
period.

Is: a transaction each thousand rows, and at the end the mark of the batch. Isn't: synced: what Redis acknowledges it
may lose with its machine (`appendfsync`).
Invariants: a row has a batch's values of a writer all or none; all values are absolute, so what was written of a batch
before its mark is written again the same. Key parts are percent-encoded, values are text (numbers as Python writes
them, times ISO 8601 in UTC, lists and structs JSON; bytes as they are); a null is no field.
"""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from typing import Any
from urllib.parse import quote

from heliograph.model.errors import ConfigError, MetadataUnavailable
from heliograph.spark.stores.micro_batches import is_in
from heliograph.spark.stores.rows import Upsert

_ROWS = 1000


class RedisStore:
    """url: as of redis-py, `redis://host:6379/0`; expire_s: a row is gone so long after its last change, 0: never."""

    def __init__(self, url: str, prefix: str, expire_s: int) -> None:
        try:
            import redis
        except ImportError as error:
            raise ConfigError("store redis wants the package redis; run: pip install redis") from error
        try:
            self._client: Any = redis.Redis.from_url(url, decode_responses=True, socket_timeout=30)
        except ValueError as error:
            raise ConfigError(f"store redis: url is none that redis-py knows: {error}") from error
        self._errors = (redis.ConnectionError, redis.TimeoutError)
        self._prefix, self._expire_s = prefix, expire_s

    def upsert(self, given: Upsert) -> None:
        marks = f"{self._prefix}{given.table}:_batches"
        try:
            done = self._client.hget(marks, given.query)
            if is_in(given.table, None if done is None else int(done), given.batch):
                return
            for chunk in given.rows.to_batches(_ROWS):
                self._write(given, chunk.to_pylist())
            if given.batch is not None:
                self._client.hset(marks, given.query, given.batch)
        except self._errors as error:
            raise MetadataUnavailable(f"Redis does not answer: {error}; the batch is delivered again") from error

    def close(self) -> None:
        self._client.close()

    def _write(self, given: Upsert, rows: list[dict[str, Any]]) -> None:
        with self._client.pipeline(transaction=True) as change:
            for row in rows:
                name = key(self._prefix, given.table, [row[part] for part in given.keys])
                there = {column: stored(row[column]) for column in given.values if row[column] is not None}
                gone = [column for column in given.values if row[column] is None]
                if there:
                    change.hset(name, mapping=there)
                if gone:
                    change.hdel(name, *gone)
                if self._expire_s:
                    change.expire(name, self._expire_s)
            change.execute()


def key(prefix: str, table: str, parts: list[Any]) -> str:
    """Returns the name of a row's hash. parts: the values of its keys, in order."""
    return f"{prefix}{table}:" + ":".join(quote(stored(part), safe="-+.T") for part in parts)


def stored(value: Any) -> str | bytes:
    """Bytes as they are: two that are no text would become the same one."""
    return value if isinstance(value, bytes) else text(value)


def text(value: Any) -> str:
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC)  # Spark's session may have another zone
    if isinstance(value, datetime | date):
        return value.isoformat()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list | dict):
        return json.dumps(value, default=text)
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
