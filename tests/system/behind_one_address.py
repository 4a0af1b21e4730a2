"""A user's program that finds its region as docs/operating/one-address.md says, and publishes numbers until it is told
to end. `python -m tests.system.behind_one_address TOPIC NAME URL` by the listener `lb` of a load balancer, or
`… TOPIC NAME NAMESPACE ADMIN=URL...` by asking the regions itself.

Is: a process that tests start; its client has a logger of the program's own. It prints how many messages are confirmed,
time and again; behind a line on its input it sends no more, and prints how many it has sent.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import threading
from typing import Any

import pulsar

from geo_tests.wan.disaster import Load
from tests.guide.page import path_of

EVERY_S = 0.05


def block(kind: str) -> str:
    """The block of that kind on the page."""
    (found,) = re.findall(rf"^```{kind}\n(.*?)^```", path_of("one-address.md").read_text(), re.MULTILINE | re.DOTALL)
    return str(found)


def client(where: list[str]) -> Any:
    log = logging.getLogger("of the program's own")
    if len(where) == 1:
        return pulsar.Client(where[0], listener_name="lb", logger=log)
    page: dict[str, Any] = {}
    exec(block("python"), page)
    regions = dict(pair.split("=", 1) for pair in where[1:])
    return pulsar.Client(page["ActiveRegion"](where[0], regions), logger=log)


def run(topic: str, name: str, *where: str) -> None:
    load = Load(client(list(where)), topic, name, every_s=0.02)
    told = threading.Event()
    threading.Thread(target=lambda: (sys.stdin.readline(), told.set()), daemon=True).start()
    while not told.wait(EVERY_S):
        print(len(load.confirmed), flush=True)
    load.end()
    print("sent", load.sent, flush=True)
    os._exit(0)  # its threads may hold the logger when the interpreter goes, and then end the process themselves


if __name__ == "__main__":
    run(*sys.argv[1:])
