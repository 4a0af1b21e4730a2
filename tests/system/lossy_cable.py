"""A cable between two network namespaces that loses packets: two TUN devices, and a thread that carries packets from
one to the other, but for a share of them by chance.

Is: loss of IP packets where the kernel has no netem. Isn't: a delay, or a limit of what is under way. Wants root.
"""

from __future__ import annotations

import fcntl
import os
import random
import selectors
import struct
import threading
from contextlib import AbstractContextManager

_SET_INTERFACE, _TUN, _NO_HEADER = 0x400454CA, 0x0001, 0x1000
"""TUNSETIFF, IFF_TUN, and IFF_NO_PI of linux/if_tun.h."""
_PACKET_MAX = 1 << 16


class LossyCable:
    """ends: for each a namespace to be in while its device is made, and the device's name. `share`: of the packets, in
    each direction, that is lost; it may be changed at any time. `lost`, `carried`: how many were so far.
    """

    def __init__(self, *ends: tuple[AbstractContextManager[None], str], seed: int) -> None:
        self.share, self.lost, self.carried = 0.0, 0, 0
        self._rng, self._ends = random.Random(seed), list[int]()
        self._wake, self._end = os.pipe()
        for inside, name in ends:
            with inside:
                self._ends.append(_device(name))
        self._thread = threading.Thread(target=self._carry, daemon=True)
        self._thread.start()

    def _carry(self) -> None:
        there = dict(zip(self._ends, reversed(self._ends), strict=True))
        with selectors.DefaultSelector() as ready:
            for one in (*self._ends, self._wake):
                ready.register(one, selectors.EVENT_READ)
            while True:
                for key, _ in ready.select():
                    if key.fd == self._wake:
                        return
                    self._pass(key.fd, there[key.fd])

    def _pass(self, source: int, target: int) -> None:
        packet = os.read(source, _PACKET_MAX)
        if self._rng.random() < self.share:
            self.lost += 1
            return
        self.carried += 1
        try:
            os.write(target, packet)
        except OSError:  # that end is not up yet
            self.lost += 1

    def close(self) -> None:
        """The devices go with it."""
        os.write(self._end, b"x")
        self._thread.join()
        for one in (*self._ends, self._wake, self._end):
            os.close(one)


def _device(name: str) -> int:
    made = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(made, _SET_INTERFACE, struct.pack("16sH22x", name.encode(), _TUN | _NO_HEADER))
    return made
