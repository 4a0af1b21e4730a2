"""What an admin takes away before a link has delivered it is named to its targets as deleted, whoever owns the topic by
then.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from heliograph.model.errors import LedgerFenced
from heliograph.model.ledger_metadata import pack
from heliograph.model.positions import BEFORE_ALL
from heliograph.wire.links.link_commands import SkipReason
from replicator.coordinates.skip_reasons import HERE
from replicator.log.coordinate_lookup import LookupStatus, coordinate_of, position_of
from replicator.log.deletion import DEAD_MAX, REMOVED_MAX, note_removed, recall, remember, truncate
from replicator.log.transaction_buffer import COMMIT, marker_run
from replicator.sending.link_sender import SenderSettings
from tests.replicator.audit.audit_world import Damaged
from tests.replicator.link_instance import TOPIC, Instance, TestRegion
from tests.replicator.link_transactions import append, publish, shown
from tests.replicator.log.deleted_topics import Metadata, made_again, play


async def truncated(region: TestRegion) -> dict[str, int]:
    """As an admin does it; the in-memory ledger frees at once what no cursor holds."""

    async def at_once(names: Sequence[str]) -> dict[str, int]:
        region.ledger.save()
        region.ledger.trim(min([region.ledger.last_confirmed, *(c.mark_delete for c in region.store.cursors.values())]))
        return dict.fromkeys(names, 0)

    region.ledger.truncate = at_once  # type: ignore[attr-defined]
    return await region.brokers[region.owner].machine.ask(truncate, region.log)


@pytest.mark.parametrize("moved", [False, True], ids=["same-owner", "another-owner"])
def test_what_was_truncated_before_a_link_had_it_is_named_deleted(moved: bool) -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        us.publish(4)
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(6)
        await asyncio.sleep(1)
        ledger = us.store.runs()[0][0]
        origin = us.log.origin
        await truncated(us)
        assert not us.store.runs(), "it is freed, although eu is away"
        if moved:
            await us.move(1)
        us.publish(3)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        kept = eu.bodies()
        assert len(kept) == 7 and kept[4:] == us.bodies()
        assert eu.log.vector.missing(origin) == (((ledger, 3), (ledger, 9)),)
        assert eu.log.state.reasons.explain(HERE, origin, eu.log.vector.missing(origin)) == [
            ((ledger, 3), (ledger, 9), SkipReason.DELETED)
        ]
        assert us.log.state.reasons.of("eu", origin, (ledger, 7)) is SkipReason.DELETED, "the source can say so, too"
        for entry, status in ((3, LookupStatus.HERE), (4, LookupStatus.DELETED), (9, LookupStatus.DELETED)):
            assert (await position_of(eu.log, origin, (ledger, entry))).status is status
        assert (await position_of(us.log, origin, (ledger, 9))).status is LookupStatus.DELETED
        assert (await coordinate_of(us.log, (ledger, 9))).status is LookupStatus.DELETED
        stats = us.link("eu")
        assert stats.connected and stats.backlog_entries == 0
        for region in (us, eu):
            region.ledger.save()  # nothing is replayed then: what is known was stored
            await region.move(1 - region.owner)
        await asyncio.sleep(5)
        assert (await position_of(eu.log, origin, (ledger, 5))).status is LookupStatus.DELETED
        assert (await position_of(us.log, origin, (ledger, 5))).status is LookupStatus.DELETED
        assert us.log.state.reasons.of("eu", origin, (ledger, 7)) is SkipReason.DELETED
        report = await Damaged(instance).audit(eu)
        assert not report.found, report.shown()

    play(scenario)


def test_no_cursor_moves_before_it_is_durable_what_was_given_up() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(6)
        us.ledger.fence()
        with pytest.raises(LedgerFenced):
            await truncated(us)
        assert us.store.cursors["pulsar.repl.eu"].mark_delete == BEFORE_ALL
        await us.move(1)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert len(instance.regions["eu"].bodies()) == 6

    play(scenario)


def test_what_links_have_delivered_is_nobodys_loss() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        us.publish(5)
        await asyncio.sleep(3)
        await truncated(us)
        assert not us.log.state.removed, "nothing was given up"
        await us.move(1)
        us.publish(2)
        await asyncio.sleep(5)
        assert len(eu.bodies()) == 7 and not eu.log.vector.missing(us.log.origin)

    play(scenario)


def test_where_entries_go_by_a_tree_links_keep_what_they_have_not_passed() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        await asyncio.sleep(1)
        instance.choose({"kind": "chain", "regions": ["us", "eu", "ap"]})
        await asyncio.sleep(3)
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(6)
        await asyncio.sleep(1)
        given_up = await truncated(us)
        assert not given_up and us.log.state.trees and len(us.bodies()) == 6 and not us.log.state.removed
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert ap.bodies() == eu.bodies() == us.bodies() and not eu.log.vector.missing(us.log.origin)

    play(scenario, ("us", "eu", "ap"))


def test_half_of_a_transaction_is_not_given_up() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        publish(us, (0, 1), 3)
        await truncated(us)
        assert not us.log.state.removed
        more = publish(us, (0, 1), 2)
        append(us, marker_run((0, 1), COMMIT, 2))
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert shown(eu) == shown(us) and shown(eu)[-2:] == more and len(shown(eu)) == 5
        assert not eu.log.vector.missing(us.log.origin)

    play(scenario)


def test_what_a_link_has_sent_of_a_transaction_keeps_its_end() -> None:
    """It is committed, and goes out in several runs: behind half of it, given up with its marker, eu would wait for
    ever.
    """

    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        for txn in ((0, 1), None, (0, 1)):
            publish(us, txn, 3)
        await asyncio.sleep(1)
        append(us, marker_run((0, 1), COMMIT, 2))
        for _ in range(1000):
            await asyncio.sleep(0.002)
            if eu.log.state.transactions is not None:
                break
        assert us.link("eu").backlog_entries, "the rest is not there yet"
        await truncated(us)
        await asyncio.sleep(20)
        state = eu.log.state
        assert state.transactions is not None and not state.transactions.open and len(shown(eu)) == 9
        assert not eu.log.vector.missing(us.log.origin)

    play(scenario, sender=SenderSettings(window_bytes=1))


def test_a_link_that_comes_while_it_is_truncated_is_not_moved() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(4)
        cursors, stored = us.store.cursors, us.ledger.store_state

        async def joined() -> None:
            await stored()
            cursors["pulsar.repl.ap"] = cursors["pulsar.repl.eu"]

        us.ledger.store_state = joined  # type: ignore[method-assign]
        moved = await truncated(us)
        assert "pulsar.repl.ap" not in moved and us.log.state.removed

    play(scenario)


def test_what_was_deleted_with_its_topic_is_named_once_that_is_made_again() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        meta = Metadata()
        us.publish(4)
        await asyncio.sleep(3)
        ledger, dead = us.store.runs()[0][0], us.log.origin
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(6)
        await asyncio.sleep(1)
        log = await made_again(us, meta)
        assert log.origin != dead and log.state.dead == ((dead, (ledger, 9)),) and not meta.held
        us.publish(2)
        await us.move(1)
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        assert len(eu.bodies()) == 6 and eu.bodies()[4:] == us.bodies()
        assert eu.log.vector.missing(dead) == (((ledger, 3), (ledger, 9)),)
        for entry, status in (
            (3, LookupStatus.HERE),
            (4, LookupStatus.DELETED),
            (9, LookupStatus.DELETED),
            (10, LookupStatus.AWAITED),
        ):
            assert (await position_of(eu.log, dead, (ledger, entry))).status is status
        assert (await position_of(us.log, dead, (ledger, 2))).status is LookupStatus.DELETED, "its own former one"
        assert us.log.state.reasons.of("eu", dead, (ledger, 5)) is SkipReason.DELETED
        assert dead not in us.log.vector, "it holds nothing of that, and does not claim to"
        await us.move(0)
        await eu.move(1)
        await asyncio.sleep(10)
        assert eu.log.vector.missing(dead) == (((ledger, 3), (ledger, 9)),), "said once more, it is passed over"
        report = await Damaged(instance).audit(eu)
        assert not report.found and len(eu.bodies()) == 6, report.shown()

    play(scenario)


def test_what_goes_by_a_tree_is_still_passed_on_when_its_topic_was_deleted() -> None:
    """ap gets it from eu, which has it: nobody names it. And ap's record, before which there was nothing, comes to the
    new topic of us through eu.
    """

    async def scenario(instance: Instance) -> None:
        us, eu, ap = instance.regions.values()
        await asyncio.sleep(1)
        instance.choose({"kind": "chain", "regions": ["us", "eu", "ap"]})
        await asyncio.sleep(3)
        us.publish(4)
        await asyncio.sleep(3)
        instance.sim.network.cut("eu", "ap")
        await asyncio.sleep(12)  # it is noticed
        us.publish(6)
        await asyncio.sleep(2)
        dead, meta = us.log.origin, Metadata()
        assert (len(eu.bodies()), len(ap.bodies())) == (10, 4)
        log = await made_again(us, meta)
        instance.choose({"kind": "chain", "regions": ["us", "eu", "ap"]}, ("us",))
        assert not log.state.dead and not meta.held
        await asyncio.sleep(5)
        instance.sim.network.heal("eu", "ap")
        await asyncio.sleep(30)
        assert ap.bodies() == eu.bodies() and len(ap.bodies()) == 10 and not ap.log.vector.missing(dead)
        assert log.vector.prefix(ap.log.origin) == ap.log.vector.prefix(ap.log.origin) > BEFORE_ALL
        assert eu.link("us").connected and eu.link("us").backlog_entries == 0

    play(scenario, ("us", "eu", "ap"))


def test_a_record_of_a_deletion_that_was_not_carried_out_does_not_stay() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        instance.sim.network.cut("us", "eu")
        await asyncio.sleep(12)  # it is noticed
        us.publish(4)
        await asyncio.sleep(1)
        meta: Any = Metadata()
        await us.brokers[0].machine.ask(remember, us.log, meta)
        assert meta.held
        instance.sim.network.heal("us", "eu")
        await asyncio.sleep(20)
        await us.brokers[0].machine.ask(remember, us.log, meta)
        assert not meta.held, "eu has everything by now"
        log = await made_again(us, meta)
        log.state.dead = (((1, 1, 7), (3, 4)),)
        meta.held = {
            f"/deleted-topics/t/n/{TOPIC}": pack([[1, 1, 7, 3, 4]])
        }  # who took it over died before it could take it away
        await us.brokers[0].machine.ask(recall, log, meta)
        assert not meta.held and log.state.dead

    play(scenario)


def test_a_record_that_cannot_be_read_keeps_no_topic_from_loading() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        meta: Any = Metadata()
        us.publish(4)
        await asyncio.sleep(3)
        log = await made_again(us, meta)
        for blob in (b"", b"\x01", b"\xffnothing", pack([[1, 2]]), pack([7])):
            meta.held = {f"/deleted-topics/t/n/{TOPIC}": blob}
            await us.brokers[us.owner].machine.ask(recall, log, meta)
            assert not log.state.dead and log.closed is None and meta.held

    play(scenario)


def test_a_topic_whose_links_had_everything_leaves_nothing_behind() -> None:
    async def scenario(instance: Instance) -> None:
        us, eu = instance.regions.values()
        meta = Metadata()
        us.publish(4)
        await asyncio.sleep(3)
        dead = us.log.origin
        log = await made_again(us, meta)
        assert not log.state.dead and not meta.held
        await asyncio.sleep(10)
        assert len(eu.bodies()) == 4 and not eu.log.vector.missing(dead)

    play(scenario)


def test_of_many_deletions_a_bounded_number_is_kept() -> None:
    async def scenario(instance: Instance) -> None:
        us = instance.regions["us"]
        instance.sim.network.cut("us", "eu")
        meta, dead = Metadata(), []
        for _ in range(DEAD_MAX + 3):
            us.publish(1)
            await asyncio.sleep(0.5)
            dead.append(us.log.origin)
            await made_again(us, meta)
        assert [origin for origin, _ in us.log.state.dead] == dead[-DEAD_MAX:]
        state = us.log.state
        for entry in range(3 * REMOVED_MAX):
            note_removed(state, (7, 2 * entry), (7, 2 * entry))
        assert (
            len(state.removed) == REMOVED_MAX
            and state.removed[0][0] == (7, 0)
            and state.removed[-1] == ((7, 94), (7, 94))
        )
        note_removed(state, (7, 0), (7, 94))
        assert len(state.removed) == REMOVED_MAX, "what was given up is not given up again"

    play(scenario)
