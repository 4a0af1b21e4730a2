"""Which embedded store may stand behind the metadata's table: lmdb, rocksdict, and sqlite against the table in memory
with its snapshots.

Is: `python -m benchmarks.metadata_store --keys 1000000`. Each candidate runs in a process of its own, on the same keys
(those of idle topics), and every transaction also writes the applied index, because the log stays the truth and says
what is to be applied again. So none needs a sync a transaction.
Isn't: Raft, or the network. The candidates are installed into ~/.cache/heliograph/metadata-stores, not into this
program's environment.
"""

from __future__ import annotations

import argparse
import json
import random
import shutil
import sqlite3
import struct
import subprocess
import sys
import tempfile
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

VENV = Path.home() / ".cache" / "heliograph" / "metadata-stores"
REPOSITORY = Path(__file__).resolve().parents[1]
PACKAGES = ("lmdb", "rocksdict", "msgpack", "crc32c")
TXN_KEYS = 500
VALUE = bytes(range(120))
_VERSION = struct.Struct(">QQ")
Row = tuple[str, bytes]


def key_of(number: int) -> str:
    scattered = number * 2654435761 % (1 << 32)
    return f"/ml/public/default/{scattered:08x}/persistent:%2F%2Fpublic%2Fdefault%2Forders-of-customer-{number:07d}"


class Table(ABC):
    """What the machine needs of a table. `put_all` is one transaction with the index that it was applied at."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @abstractmethod
    def put_all(self, rows: Sequence[Row], index: int) -> None: ...

    @abstractmethod
    def get(self, key: str) -> bytes | None: ...

    @abstractmethod
    def range(self, start: str, count: int) -> list[Row]: ...

    @abstractmethod
    def close(self) -> None:
        """Closes the store; then everything is durable."""


class Memory(Table):
    """The present table: a dict, sorted blocks of keys, a snapshot file."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        from heliograph.kv.state_machine import KvMachine

        self._machine = KvMachine()
        blob = folder / "snapshot"
        if blob.exists():
            self._machine.restore(blob.read_bytes())

    def put_all(self, rows: Sequence[Row], index: int) -> None:
        from heliograph.kv.machine_commands import CommandKind, command

        self._machine.apply(index, command(CommandKind.TXN, [[[0, key, value, None, 0] for key, value in rows]]))

    def get(self, key: str) -> bytes | None:
        found = self._machine.get(key)
        return None if found is None else found[0]

    def range(self, start: str, count: int) -> list[Row]:
        return [(key, value) for key, value, _ in self._machine.range(start, "\U0010ffff", count)[0]]

    def close(self) -> None:
        with (self.folder / "snapshot").open("wb") as file:
            for piece in self._machine.parts():
                file.write(piece)


class Lmdb(Table):
    """Copy-on-write B+ tree in a mapped file. Commits are not synced one by one; without a writable map a power cut can
    still tear it, hence `close`.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._env = import_module("lmdb").open(
            str(folder / "lmdb"), map_size=16 << 30, metasync=False, sync=False, max_dbs=1
        )

    def put_all(self, rows: Sequence[Row], index: int) -> None:
        head = _VERSION.pack(index, 0)
        with self._env.begin(write=True) as txn:
            for key, value in rows:
                txn.put(key.encode(), head + value)
            txn.put(b"!index", head)

    def get(self, key: str) -> bytes | None:
        with self._env.begin() as txn:
            found: bytes | None = txn.get(key.encode())
        return None if found is None else found[_VERSION.size :]

    def range(self, start: str, count: int) -> list[Row]:
        out: list[Row] = []
        with self._env.begin() as txn:
            cursor = txn.cursor()
            if cursor.set_range(start.encode()):
                for key, value in cursor:
                    out.append((key.decode(), value[_VERSION.size :]))
                    if len(out) >= count:
                        break
        return out

    def close(self) -> None:
        self._env.sync(True)
        self._env.close()


class Rocks(Table):
    """Log-structured merge tree. Its own write-ahead log is off: ours is the truth."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        rocksdict: Any = import_module("rocksdict")
        options = rocksdict.Options(raw_mode=True)
        self._write = rocksdict.WriteOptions()
        self._write.disable_wal = True
        self._batch = rocksdict.WriteBatch
        self._db = rocksdict.Rdict(str(folder / "rocks"), options)

    def put_all(self, rows: Sequence[Row], index: int) -> None:
        head = _VERSION.pack(index, 0)
        batch = self._batch(raw_mode=True)
        for key, value in rows:
            batch.put(key.encode(), head + value)
        batch.put(b"!index", head)
        self._db.write(batch, self._write)

    def get(self, key: str) -> bytes | None:
        found = self._db.get(key.encode())
        return None if found is None else bytes(found[_VERSION.size :])

    def range(self, start: str, count: int) -> list[Row]:
        out: list[Row] = []
        for key, value in self._db.items(from_key=start.encode()):
            out.append((key.decode(), value[_VERSION.size :]))
            if len(out) >= count:
                break
        return out

    def close(self) -> None:
        self._db.flush()
        self._db.close()


class Sqlite(Table):
    """B-tree with a write-ahead log, which is synced at checkpoints only."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._db = sqlite3.connect(folder / "sqlite", isolation_level=None, cached_statements=64)
        for pragma in ("journal_mode=WAL", "synchronous=NORMAL", "cache_size=-65536", "mmap_size=1073741824"):
            self._db.execute(f"PRAGMA {pragma}")
        self._db.execute(
            "CREATE TABLE IF NOT EXISTS t (k TEXT PRIMARY KEY, v BLOB, version INTEGER, lease INTEGER) WITHOUT ROWID"
        )
        self._db.execute("CREATE TABLE IF NOT EXISTS applied (id INTEGER PRIMARY KEY, at INTEGER)")

    def put_all(self, rows: Sequence[Row], index: int) -> None:
        self._db.execute("BEGIN")
        self._db.executemany(
            "INSERT OR REPLACE INTO t VALUES (?, ?, ?, 0)", [(key, value, index) for key, value in rows]
        )
        self._db.execute("INSERT OR REPLACE INTO applied VALUES (0, ?)", (index,))
        self._db.execute("COMMIT")

    def get(self, key: str) -> bytes | None:
        found = self._db.execute("SELECT v, version FROM t WHERE k = ?", (key,)).fetchone()
        return None if found is None else found[0]

    def range(self, start: str, count: int) -> list[Row]:
        found: list[Row] = self._db.execute(
            "SELECT k, v FROM t WHERE k >= ? ORDER BY k LIMIT ?", (start, count)
        ).fetchall()
        return found

    def close(self) -> None:
        self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        self._db.close()


TABLES: dict[str, type[Table]] = {"memory": Memory, "lmdb": Lmdb, "rocksdict": Rocks, "sqlite": Sqlite}


def pss_mb() -> tuple[float, float]:
    """(all of it, what no file stands behind)."""
    values = {
        line.split(":")[0]: line.split()[1] for line in Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    }
    return int(values["Pss"]) / 1e3, int(values["Pss_Anon"]) / 1e3


def us(began: float, count: int) -> float:
    return round(1e6 * (time.perf_counter() - began) / count, 2)


def measure(name: str, folder: Path, keys: int, phase: str) -> dict[str, float]:
    """`load` in one process, `read` in another one, as after a restart."""
    rng, out = random.Random(1), dict[str, float]()
    began = time.perf_counter()
    table = TABLES[name](folder)
    if phase == "load":
        index, began, slowest = 0, time.perf_counter(), 0.0
        for first in range(0, keys, TXN_KEYS):
            index += 1
            begun = time.perf_counter()
            table.put_all([(key_of(number), VALUE) for number in range(first, min(keys, first + TXN_KEYS))], index)
            slowest = max(slowest, time.perf_counter() - begun)
        out["load_us_a_key"], out["slowest_txn_ms"] = us(began, keys), round(1e3 * slowest, 1)
        singles = 5000
        began = time.perf_counter()
        for step in range(singles):
            table.put_all([(key_of(rng.randrange(keys)), VALUE)], index + 1 + step)
        out["put_us"] = us(began, singles)
        out["loaded_pss_mb"], out["loaded_anon_mb"] = pss_mb()
        began = time.perf_counter()
        table.close()
        out["close_s"] = round(time.perf_counter() - began, 3)
        out["disk_mb"] = round(sum(f.stat().st_blocks * 512 for f in folder.rglob("*") if f.is_file()) / 1e6, 1)
        return out
    assert table.get(key_of(0)) == VALUE
    out["open_s"] = round(time.perf_counter() - began, 3)
    out["opened_anon_mb"] = pss_mb()[1]
    gets, ranges = 50_000, 200
    wanted = [key_of(rng.randrange(keys)) for _ in range(gets)]
    began = time.perf_counter()
    for key in wanted:
        if table.get(key) is None:
            raise SystemExit(f"{name} lost {key}")
    out["get_us"] = us(began, gets)
    began = time.perf_counter()
    for key in wanted[:ranges]:
        table.range(key, 1000)
    out["range_of_1000_us"] = us(began, ranges)
    out["read_pss_mb"], out["read_anon_mb"] = pss_mb()
    return out


def python() -> str:
    """Returns the program of the environment that has the candidates; it is made the first time."""
    program = VENV / "bin" / "python"
    probe = [str(program), "-c", "import lmdb, rocksdict, msgpack, crc32c"]
    if not program.exists() or subprocess.run(probe, capture_output=True, check=False).returncode:
        print("installing the candidates (once) ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", str(VENV)], check=True)
        subprocess.run([str(VENV / "bin" / "pip"), "install", "-q", *PACKAGES], check=True)
    return str(program)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="benchmarks.metadata_store", description=__doc__.partition("\n\n")[0] if __doc__ else ""
    )
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--only", default=",".join(TABLES))
    parser.add_argument("--run", nargs=3, metavar=("NAME", "FOLDER", "PHASE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.run:
        name, folder, phase = chosen.run
        print(json.dumps(measure(name, Path(folder), chosen.keys, phase)))
        return
    found: dict[str, dict[str, Any]] = {}
    for name in chosen.only.split(","):
        folder = Path(tempfile.mkdtemp(prefix="heliograph-store-"))
        try:
            found[name] = {}
            for phase in ("load", "read"):
                command = [
                    python(),
                    "-m",
                    "benchmarks.metadata_store",
                    "--keys",
                    str(chosen.keys),
                    "--run",
                    name,
                    str(folder),
                    phase,
                ]
                found[name] |= json.loads(
                    subprocess.run(command, check=True, cwd=REPOSITORY, stdout=subprocess.PIPE).stdout
                )
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    rows = list(dict.fromkeys(row for each in found.values() for row in each))
    print(f"{chosen.keys} keys".ljust(22) + "".join(name.rjust(12) for name in found))
    for row in rows:
        print(row.ljust(22) + "".join(f"{each[row]:12.2f}" for each in found.values()))


if __name__ == "__main__":
    main()
