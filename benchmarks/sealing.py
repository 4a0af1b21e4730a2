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
from heliograph.wire.block import encode_block
from heliograph.wire.run import Run
from storage.sealing.cipher import RunSealer
from storage.sealing.keyring import new_master_line, new_secret

ROUNDS = 7
COUNT = 40_000


def of_a_run(size: int, count: int, rounds: int = 300) -> tuple[float, float]:
    """Microseconds of making a block of `count` entries, plain and sealed."""
    parts, sealer = [bytes(size)] * count, RunSealer(1, 2, (1, secret := new_secret()), lambda: (1, secret))
    took: list[tuple[float, float]] = []
    for at in range(rounds):
        begun = time.perf_counter()
        encode_block(Run(parts, [size] * count), 1, at)
        between = time.perf_counter()
        encode_block(sealer(Run(parts, [size] * count), at), 1, at)
        took.append((between - begun, time.perf_counter() - between))
    return median(plain for plain, _ in took) * 1e6, median(sealed for _, sealed in took) * 1e6


def main() -> None:
    console = Console()
    for size, count in ((100, 1), (100, 100), (1024, 100), (1024, 500)):
        plain, sealed = of_a_run(size, count)
        console.print(
            f"a run of {count} x {size} B: {plain:.0f} us plain, {sealed:.0f} us sealed "
            f"({(sealed - plain) / count:.2f} us more an entry)"
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
