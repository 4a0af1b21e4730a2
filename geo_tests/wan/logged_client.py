"""A program of a user's: the official client with a logger of the program's own, publishing numbers until it is told to
end. `python -m geo_tests.wan.logged_client URL TOPIC NAME`.

Is: a process that tests start. It prints how many messages are confirmed, time and again; behind a line on its input it
sends no more, and prints how many it has sent, and how many its consumer got.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import threading

import pulsar

from geo_tests.wan.disaster import Load

EVERY_S = 0.05


def run(url: str, topic: str, name: str) -> None:
    client = pulsar.Client(url, logger=logging.getLogger("of the program's own"))
    load = Load(client, topic, name)
    consumer = client.subscribe(topic, name, initial_position=pulsar.InitialPosition.Earliest)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    while not told.wait(EVERY_S):
        print(len(load.confirmed), flush=True)
    load.end()
    got = set()
    with contextlib.suppress(pulsar.Timeout):
        while len(got) < load.sent:
            message = consumer.receive(timeout_millis=20_000)
            consumer.acknowledge(message)
            got.add(message.data())
    print("sent", load.sent, "got", len(got), flush=True)
    client.close()
    os._exit(0)  # its threads may hold the logger when the interpreter goes, and then end the process themselves


if __name__ == "__main__":
    run(*sys.argv[1:])
