"""All bookies of a region lose their disks at once."""

from __future__ import annotations

import asyncio

from geo_tests.sim.premises import Owner, Premises
from storage.ledger.repair.autorecovery import AutoRecovery


async def emptied(premises: Premises, owner: Owner) -> None:
    """All bookies, which begin new lives."""
    recovery = AutoRecovery(owner.context, "auditor", Premises.settings.auto_recovery)
    await owner.do(recovery.start)
    for node in premises.region.bookies:
        premises.empty(node)
        node.start()
    await asyncio.sleep(2.0)
    for node in premises.region.bookies:
        await owner.do(lambda node=node: recovery.new_lives.grant(node.name, force=True))  # type: ignore[misc]
    await asyncio.sleep(3.0)
    await owner.do(recovery.stop)
