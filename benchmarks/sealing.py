"""`python -m benchmarks.sealing`: what encryption at rest costs a broker and its bookies.

Is: one standalone, a plain and a sealed namespace in turn, 1 KB and 100 B entries, so that both see the same noise; and
the cipher by itself.
Isn't: a comparison with a peer.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from pathlib import Path
from statistics import median

from rich.console import Console

from benchmarks.raw_client import blast
from benchmarks.servers import Heliograph, rest
from heliograph.wire.block import decode_block, encode_block
from heliograph.wire.run import Run
from storage.sealing.cipher import BYTES_ALONE, WITH_HEADER, Ciphers, RunSealer
from storage.sealing.keyring import new_master_line, new_secret

ROUNDS = 7
COUNT = 40_000


def of_a_run(size: int, count: int, rounds: int = 300) -> list[float]:
    """Microseconds of CPU of making a block of `count` entries, plain and sealed in each form, and of reading it."""
    parts, secret = [bytes(size)] * count, new_secret()
    sealers = [
        None,
        *(RunSealer(1, form, (1, secret), lambda: (1, secret), form) for form in (BYTES_ALONE, WITH_HEADER)),
    ]
    ciphers = Ciphers(lambda _: secret)
    found: list[float] = []
    for sealer in sealers:  # one after the other: each in memory that the same work has left
        made: list[int] = []
        read: list[int] = []
        for at in range(0, rounds * count, count):
            run = Run(parts, [size] * count, producers=(("a-producer", count, at, None),))
            begun = time.process_time_ns()
            block = encode_block(run if sealer is None else sealer(run, at), 1, at)
            made.append(time.process_time_ns() - begun)
            joined = b"".join(block)
            begun = time.process_time_ns()
            ciphers.opened(1, at, decode_block(joined)[2])
            read.append(time.process_time_ns() - begun)
        found += median(made) / 1e3, median(read) / 1e3
    return found


def main() -> None:
    console = Console()
    for size, count in ((100, 1), (100, 100), (1024, 100), (1024, 500), (2048, 512)):
        plain, read, older, opened_older, sealed, opened = of_a_run(size, count)
        console.print(
            f"a run of {count} x {size} B: {plain:.0f} us plain, {sealed:.0f} us sealed "
            f"({(sealed - plain) / count:.2f} us more an entry; without its header {older:.0f} us); "
            f"read in {read:.0f} us, {opened:.0f} us ({opened_older:.0f} us)"
        )
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        master = Path(scratch) / "master.keys"
        master.touch(mode=0o600)
        master.write_text(new_master_line("bench"))
        os.environ["HELIOGRAPH_BROKER__ENCRYPTION__MASTER_KEY_FILE"] = str(master)
        server = Heliograph(Path(scratch) / "h")
        try:
            admin = f"http://127.0.0.1:{next(iter(server.regions.values()))[1]}/admin/v2/namespaces/public"
            for name, on in (("plain", False), ("sealed", True)):
                rest("PUT", f"{admin}/{name}", {})
                rest("POST", f"{admin}/{name}/encryptionAtRest", on)
            for size in (100, 1024):
                ratios = []
                for _ in range(ROUNDS):
                    took = [
                        asyncio.run(blast(server.port, f"persistent://public/{name}/t", size, COUNT, 2000, warm=2000))[
                            1
                        ]
                        for name in ("plain", "sealed")
                    ]
                    ratios.append(took[1] / took[0])
                console.print(
                    f"{size} B entries, {COUNT} a round, {ROUNDS} rounds in turn: sealed takes {median(ratios):.2f} "
                    "times as long"
                )
        finally:
            server.stop()


if __name__ == "__main__":
    main()
