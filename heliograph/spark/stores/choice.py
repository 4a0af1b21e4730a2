"""Options of a target to its store, checked; one sentence where they are wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heliograph.model.errors import ConfigError
from heliograph.spark.job_files.job_options import folder_of, refuse_unknown, text_of
from heliograph.spark.stores.clickhouse import ClickHouseStore, HttpEngine
from heliograph.spark.stores.delta import DeltaStore
from heliograph.spark.stores.embedded import ChdbEngine
from heliograph.spark.stores.hive import HiveStore
from heliograph.spark.stores.iceberg import IcebergStore
from heliograph.spark.stores.parquet import ParquetStore
from heliograph.spark.stores.redis import RedisStore
from heliograph.spark.stores.rows import RowStore

_OPTIONS = {
    "parquet": ("path",),
    "delta": ("path",),
    "iceberg": ("path", "namespace", "catalog"),
    "hive": ("path", "database"),
    "clickhouse": ("url", "path"),
    "redis": ("url", "prefix", "expire_s"),
}


def store_of(options: Mapping[str, Any], where: str, spark: Any) -> RowStore:
    """`store` says which, the others are its own. Raises ConfigError."""
    kind = text_of(options, "store", where, "")
    if kind not in _OPTIONS:
        raise ConfigError(f"{where}: store is {kind!r}; it may be {', '.join(sorted(_OPTIONS))}")
    refuse_unknown(options, ("store", *_OPTIONS[kind]), f"{where}, store {kind},")
    match kind:
        case "parquet":
            return ParquetStore(Path(folder_of(options, "path", where)))
        case "delta":
            return DeltaStore(Path(folder_of(options, "path", where)))
        case "iceberg":
            return _iceberg(options, where)
        case "hive":
            return HiveStore(
                spark, Path(folder_of(options, "path", where)), text_of(options, "database", where, "default")
            )
        case "clickhouse":
            if bool(options.get("url")) == bool(options.get("path")):
                raise ConfigError(
                    f"{where}: clickhouse wants either url, of a server, or path, a folder for the engine of the "
                    "package chdb"
                )
            url = text_of(options, "url", where, "")
            return ClickHouseStore(HttpEngine(url) if url else ChdbEngine(folder_of(options, "path", where)))
        case _:
            return _redis(options, where)


def _iceberg(options: Mapping[str, Any], where: str) -> RowStore:
    catalog = options.get("catalog", {})
    if not isinstance(catalog, dict) or not all(isinstance(value, str) for value in catalog.values()):
        raise ConfigError(
            f"{where}: catalog is a table of pyiceberg's properties, all texts: type, uri, warehouse, ..."
        )
    if not catalog and not options.get("path"):
        raise ConfigError(
            f"{where}: iceberg wants path, a folder for data and an SQLite catalogue, or catalog, of a server"
        )
    root = Path(folder_of(options, "path", where)) if options.get("path") else None
    return IcebergStore(root, text_of(options, "namespace", where, "default"), catalog)


def _redis(options: Mapping[str, Any], where: str) -> RowStore:
    expire_s = options.get("expire_s", 0)
    if isinstance(expire_s, bool) or not isinstance(expire_s, int) or expire_s < 0:
        raise ConfigError(f"{where}: expire_s is {expire_s!r}; it is a number of seconds, and 0 is never")
    return RedisStore(
        text_of(options, "url", where, "redis://127.0.0.1:6379/0"), text_of(options, "prefix", where, ""), expire_s
    )
