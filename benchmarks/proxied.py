"""`make bench-proxied`: how many bytes cross the network for each byte published and read, directly and through a
proxying layer.

Is: one broker, two bookies, two copies, one subscription. Direct: the client asks any broker where the topic is, and
then talks to its owner. Proxied: the owner is advertised under a second listener name whose address is that of a
process that passes bytes on, as proxies and load balancers on the way of data do. All processes are on this machine, so
each byte that goes from one to another is counted once, by the loopback's counter: that of a network namespace of their
own, where the system allows one; else what others send there meanwhile is measured before and after, and taken off.
Isn't: a measure of speed.
"""

from __future__ import annotations

import argparse
import asyncio
import ctypes
import fcntl
import json
import multiprocessing
import os
import socket
import struct
import tempfile
import time
from pathlib import Path

import psutil
import pulsar

from benchmarks.servers import Heliograph, free_port

LISTENER = "proxied"
TOPIC = "persistent://public/default/amplified"
COPIES = 2
QUIET_S = 2.0
_CLONE_NEWNET, _SIOCSIFFLAGS, _IFF_UP = 0x40000000, 0x8914, 1


def alone() -> bool:
    """A network namespace of its own for this process and its children, with its loopback up. False: it is not
    allowed.
    """
    if ctypes.CDLL(None).unshare(_CLONE_NEWNET) != 0:
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", _IFF_UP))
    return True


def carried() -> int:
    """Bytes that the loopback has carried."""
    return int(psutil.net_io_counters(pernic=True)["lo"].bytes_sent)


def others() -> float:
    """Bytes a second that it carries although nobody publishes here."""
    before = carried()
    time.sleep(QUIET_S)
    return (carried() - before) / QUIET_S


def forward(port: int, target: int) -> None:
    """Passes bytes on to `target`, both ways, until the process is ended."""

    async def pipe(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 18):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass
        finally:
            writer.close()

    async def on_client(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        back, forth = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pipe(reader, forth), pipe(back, writer))

    async def main() -> None:
        async with await asyncio.start_server(on_client, "127.0.0.1", port) as server:
            await server.serve_forever()

    asyncio.run(main())


def crossed(service: str, listener: str | None, size: int, count: int) -> float:
    """Bytes on the network for each byte of payload that was published and read."""
    client = pulsar.Client(service, listener_name=listener, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    try:
        topic = f"{TOPIC}-{listener or 'direct'}-{size}-{time.time_ns()}"
        consumer = client.subscribe(topic, "s", receiver_queue_size=1000)
        producer = client.create_producer(
            topic, block_if_queue_full=True, max_pending_messages=1000, batching_enabled=False
        )
        payload = os.urandom(size)
        noise_before, before, began = others(), carried(), time.perf_counter()
        for at in range(count):
            producer.send_async(payload, None)
            if at >= 500:
                consumer.acknowledge_cumulative(consumer.receive(60_000))
        for _ in range(min(500, count)):
            consumer.acknowledge_cumulative(consumer.receive(60_000))
        producer.flush()
        took, grown = time.perf_counter() - began, carried() - before
        return (grown - took * (noise_before + others()) / 2) / (size * count)
    finally:
        client.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("--megabytes", type=int, default=64, help="published in each case")
    parser.add_argument("--sizes", default="1024,65536", help="bytes of a message, with commas")
    options = parser.parse_args()
    if not alone():
        print("the loopback is shared with whatever else runs here: that is taken off, and makes the figures coarse")
    port = free_port()
    os.environ["HELIOGRAPH_BROKER__LISTENERS"] = json.dumps({LISTENER: f"pulsar://127.0.0.1:{port}"})
    with tempfile.TemporaryDirectory(prefix="heliograph-bench-") as scratch:
        server = Heliograph(Path(scratch) / "h")
        proxy = multiprocessing.get_context("spawn").Process(target=forward, args=(port, server.port), daemon=True)
        proxy.start()
        try:
            print("| message | direct | through a proxy | more |\n|---|---|---|---|")
            for size in (int(part) for part in options.sizes.split(",")):
                count = options.megabytes * 1_000_000 // size
                direct = crossed(f"pulsar://127.0.0.1:{server.port}", None, size, count)
                proxied = crossed(f"pulsar://127.0.0.1:{port}", LISTENER, size, count)
                print(f"| {size} B | {direct:.2f} | {proxied:.2f} | {proxied / direct - 1:.0%} |", flush=True)
            print(
                f"\nthe least there can be: {2 + COPIES} directly (in, {COPIES} copies, out), {4 + COPIES} through a "
                "proxy"
            )
        finally:
            proxy.terminate()
            proxy.join()
            server.stop()


if __name__ == "__main__":
    main()
