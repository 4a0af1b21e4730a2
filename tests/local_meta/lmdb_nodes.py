"""Metadata nodes over real LMDB tables and sockets."""

from __future__ import annotations

import asyncio
import random

from heliograph.kv.metadata_client import ClientSettings, MetaClient
from heliograph.model.errors import MetadataUnavailable
from heliograph.runtime.clock import SystemClock

DEADLINE_S = 150.0


def client_of(*ports: int) -> MetaClient:
    addresses = [f"127.0.0.1:{port}" for port in ports]
    return MetaClient(
        addresses, clock=SystemClock(), rng=random.Random(9), settings=ClientSettings(timeout_s=DEADLINE_S)
    )


async def hand_over(client: MetaClient, to: str) -> None:
    """To be tried again: who is asked has one election time-out for it, which a busy machine may need for less."""
    while True:
        try:
            await client.members("transfer", to, "")
            return
        except MetadataUnavailable:
            await asyncio.sleep(0.05)
