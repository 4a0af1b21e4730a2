"""OwnershipCore against a model of the metadata: several brokers, late and lost messages, expiring leases, unloads, and
drains.
"""

from __future__ import annotations

import random
from collections import defaultdict

import pytest

from region_node.placement.ownership.broker_records import BrokerRecord, OwnerRecord
from region_node.placement.ownership.ownership_core import (
    Acquire,
    Action,
    Bundle,
    Close,
    Forget,
    Here,
    Holding,
    Load,
    Moving,
    OwnershipCore,
    OwnershipSettings,
    There,
)

SETTINGS = OwnershipSettings()
NAMESPACE = "public/default"
BUNDLES = [(NAMESPACE, index) for index in range(4)]


def core(broker: str = "a", seed: int = 0) -> OwnershipCore:
    made = OwnershipCore(broker, random.Random(seed), SETTINGS)
    for other in ("a", "b"):
        made.on_broker(other, BrokerRecord(other, {"": f"pulsar://{other}"}))
    made.on_lease(1, 0.0)
    made.on_namespace(NAMESPACE, 4, False, 0.0)
    return made


def owned(seed: int = 0) -> tuple[OwnershipCore, Bundle]:
    made, bundle = core(seed=seed), BUNDLES[0]
    assert made.take(bundle) == [Acquire(bundle, 1)]
    assert made.on_acquired(bundle, 10, 1, 0.0) == [Load(bundle)]
    return made, bundle


def test_a_lookup_takes_what_nobody_has_when_it_is_authoritative() -> None:
    made = core()
    found, actions = made.find(BUNDLES[0], True)
    assert isinstance(found, Moving) and actions == [Acquire(BUNDLES[0], 1)]
    assert made.find(BUNDLES[0], True)[1] == []
    made.on_acquired(BUNDLES[0], 5, 1, 0.0)
    assert made.find(BUNDLES[0], True) == (Here(), [])


def test_a_first_lookup_is_spread_over_the_live_brokers() -> None:
    made = core()
    answers = [made.find((NAMESPACE, index), False)[0] for index in range(4) for _ in range(5)]
    assert any(isinstance(a, There) and a.redirect and a.broker.broker == "b" for a in answers)
    assert any(isinstance(a, Moving) for a in answers)


def test_the_owner_of_another_broker_is_named_without_redirect() -> None:
    made = core()
    made.on_owner(BUNDLES[0], OwnerRecord("b", 2), 7, 0.0)
    found, actions = made.find(BUNDLES[0], False)
    assert found == There(made.brokers["b"], redirect=False) and not actions
    made.on_broker("b", None)
    assert isinstance(made.find(BUNDLES[0], False)[0], Moving)


def test_an_orphan_is_taken_within_the_delay() -> None:
    made = core()
    made.on_owner(BUNDLES[0], OwnerRecord("b", 2), 7, 0.0)
    assert made.next_deadline() is None
    made.on_owner(BUNDLES[0], None, 9, 5.0)
    deadline = made.next_deadline()
    assert deadline is not None and 5.0 <= deadline <= 5.0 + SETTINGS.takeover_delay_s
    assert made.on_time(deadline) == [Acquire(BUNDLES[0], 1)]


def test_how_long_a_bundle_is_left_to_others_is_set() -> None:
    made, bundle = OwnershipCore("a", random.Random(0), OwnershipSettings(hand_over_s=70.0)), BUNDLES[0]
    made.on_lease(1, 0.0)
    made.on_namespace(NAMESPACE, 4, False, 0.0)
    made.take(bundle)
    made.on_acquired(bundle, 10, 1, 0.0)
    made.release(bundle)
    made.on_closed(bundle, True, 1.0)
    made.on_owner(bundle, None, 11, 1.0)
    deadline = made.next_deadline()
    assert deadline is not None and deadline >= 71.0


def test_who_gave_a_bundle_up_leaves_it_to_others_first() -> None:
    for order in ("event first", "answer first"):
        made, bundle = owned()
        assert made.release(bundle) == [Close(bundle, 10)]
        assert isinstance(made.find(bundle, True)[0], Moving)
        if order == "event first":
            made.on_owner(bundle, None, 11, 1.0)
            made.on_closed(bundle, True, 1.0)
        else:
            made.on_closed(bundle, True, 1.0)
            made.on_owner(bundle, None, 11, 1.0)
        deadline = made.next_deadline()
        assert deadline is not None and deadline >= 1.0 + SETTINGS.hand_over_s


def test_a_lost_lease_closes_without_touching_the_key_and_late_answers_count_for_nothing() -> None:
    made, bundle = owned()
    assert made.take(BUNDLES[1]) == [Acquire(BUNDLES[1], 1)]
    assert made.on_lease_lost() == [Close(bundle, -1)]
    made.on_lease(2, 1.0)
    assert made.take(BUNDLES[1]) == [Acquire(BUNDLES[1], 2)]
    assert made.on_acquired(BUNDLES[1], 12, 1, 1.0) == []
    assert not made.owns(BUNDLES[1])
    assert made.take(bundle) == []  # still closing
    assert made.on_closed(bundle, False, 1.0) == [
        Forget(bundle, 10)
    ]  # the metadata may not know yet that the lease is over
    assert isinstance(made.find(bundle, True)[0], Moving)
    made.on_owner(bundle, None, 13, 1.0)
    assert made.take(bundle) == [Acquire(bundle, 2)]


def test_an_owner_that_followed_us_closes_the_bundle_but_an_earlier_one_does_not() -> None:
    made, bundle = owned()
    assert made.on_owner(bundle, OwnerRecord("b", 2), 8, 0.0) == []
    assert made.on_owner(bundle, None, 9, 0.0) == []
    assert made.owns(bundle)
    assert made.on_owner(bundle, OwnerRecord("b", 2), 12, 0.0) == [Close(bundle, -1)]


def test_an_answer_that_comes_after_the_key_is_gone_owns_nothing() -> None:
    made, bundle = core(), BUNDLES[0]
    made.take(bundle)
    made.on_owner(bundle, None, 20, 0.0)
    assert made.on_acquired(bundle, 18, 1, 0.0) == []
    assert not made.owns(bundle)


def test_an_unknown_outcome_is_settled_by_the_watch() -> None:
    made, bundle = core(), BUNDLES[0]
    made.take(bundle)
    assert made.on_owner(bundle, OwnerRecord("a", 1), 5, 0.0) == [Load(bundle)]
    assert made.owns(bundle)
    assert made.on_acquired(bundle, 5, 1, 0.0) == []


def test_what_an_earlier_life_left_is_cleared_away() -> None:
    made = OwnershipCore("a", random.Random(1), SETTINGS)
    made.on_owner(BUNDLES[2], OwnerRecord("a", 3), 9, 0.0)
    assert made.on_lease(4, 0.0) == [Forget(BUNDLES[2], 9)]


def test_a_draining_broker_gives_all_up_and_takes_nothing() -> None:
    made, bundle = owned()
    made.take(BUNDLES[1])
    assert made.drain() == [Close(bundle, 10)]
    assert made.on_acquired(BUNDLES[1], 11, 1, 0.0) == [Close(BUNDLES[1], 11)]
    assert made.take(BUNDLES[2]) == [] and made.next_deadline() is None
    found, actions = made.find(BUNDLES[2], True)
    assert found == There(made.brokers["b"], redirect=True) and not actions


def test_a_move_is_ordered_closed_and_assigned() -> None:
    made, bundle = owned()
    made.on_owner(bundle, OwnerRecord("a", 1), 10, 0.0)
    made.on_broker("b", BrokerRecord("b", {"": "pulsar://b"}, lease=7))
    assert made.transfer(bundle, "a") is None, "it is there"
    assert made.transfer(bundle, "c") is None, "nobody knows that broker"
    order = made.transfer(bundle, "b")
    assert order == (OwnerRecord("a", 1, "b"), 10)
    assert made.on_owner(bundle, order[0], 11, 0.0) == [Close(bundle, 11, OwnerRecord("b", 7))]
    assert made.transfer(bundle, "b") is None, "it is in motion"
    assert isinstance(made.find(bundle, True)[0], Moving)
    assert made.on_closed(bundle, False, 0.0, handed=12) == []
    assert made.find(bundle, True)[0] == There(made.brokers["b"], redirect=False)
    assert made.on_owner(bundle, OwnerRecord("b", 7), 12, 0.0) == []


def test_whoever_a_bundle_is_moved_to_waits_for_it_and_owns_it_without_asking() -> None:
    made, bundle = core("b"), BUNDLES[0]
    made.on_owner(bundle, OwnerRecord("a", 5, "b"), 7, 0.0)
    assert made.coming(bundle) and isinstance(made.find(bundle, True)[0], Moving)
    assert made.on_owner(bundle, OwnerRecord("b", 1), 8, 0.0) == [Load(bundle)]
    assert made.owns(bundle) and not made.coming(bundle)


def test_a_bundle_that_comes_to_a_draining_broker_is_let_go() -> None:
    made, bundle = core("b"), BUNDLES[0]
    made.drain()
    assert made.on_owner(bundle, OwnerRecord("b", 1), 8, 0.0) == [Forget(bundle, 8)]


def test_a_drain_hands_each_bundle_to_a_broker_of_choice() -> None:
    made, bundle = owned()
    made.on_broker("b", BrokerRecord("b", {"": "pulsar://b"}, lease=7))
    assert made.drain() == [Close(bundle, 10, OwnerRecord("b", 7))]


def test_standing_bundles_are_claimed_without_a_lookup() -> None:
    made = core()
    made.on_namespace("geo/x", 3, True, 1.0)
    assert made.on_time(1.0 + SETTINGS.takeover_delay_s) == [Acquire(("geo/x", index), 1) for index in range(3)]
    for index in range(3):
        made.on_acquired(("geo/x", index), 30 + index, 1, 2.0)
    assert made.on_namespace("geo/x", 0, False, 3.0) == [Close(("geo/x", index), 30 + index) for index in range(3)]


class World:
    """The metadata (one log of changes), brokers that see it late, and messages on their way."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now, self.version = 0.0, 0
        self.keys: dict[Bundle, tuple[OwnerRecord, int]] = {}
        self.log: list[tuple[Bundle, OwnerRecord | None, int]] = []
        self.leases: dict[str, int] = {}
        self.cores: dict[str, OwnershipCore] = {}
        self.seen: dict[str, int] = {}
        self.work: list[tuple[str, Action]] = []
        self.answers: list[tuple[str, Bundle, int, int]] = []
        self.named: defaultdict[tuple[str, Bundle], set[int]] = defaultdict(set)
        self.moves = 0
        for broker in ("a", "b", "c"):
            self.boot(broker)

    def boot(self, broker: str) -> None:
        self.work = [w for w in self.work if w[0] != broker]
        self.answers = [a for a in self.answers if a[0] != broker]
        made = OwnershipCore(broker, random.Random(self.rng.random()), SETTINGS)
        self.cores[broker], self.seen[broker] = made, 0
        self.do(broker, made.on_namespace(NAMESPACE, 4, True, self.now))
        self.grant(broker)

    def grant(self, broker: str) -> None:
        self.version += 1
        self.leases[broker] = self.version
        self.do(broker, self.cores[broker].on_lease(self.version, self.now))
        for other in self.cores.values():
            for name in self.cores:
                other.on_broker(name, BrokerRecord(name, {"": name}, lease=self.leases.get(name, 0)))

    def do(self, broker: str, actions: list[Action]) -> None:
        self.work += [(broker, action) for action in actions]

    def change(self, bundle: Bundle, owner: OwnerRecord | None) -> int:
        self.version += 1
        if owner is None:
            del self.keys[bundle]
        else:
            self.keys[bundle] = (owner, self.version)
            if not owner.to:
                self.named[owner.broker, bundle].add(self.version)
        self.log.append((bundle, owner, self.version))
        return self.version

    def expire(self, broker: str) -> None:
        lease = self.leases.pop(broker)
        for bundle in [b for b, (o, _) in sorted(self.keys.items()) if o.lease == lease]:
            self.change(bundle, None)

    def carry_out(self) -> None:
        broker, action = self.work.pop(self.rng.randrange(len(self.work)))
        made = self.cores[broker]
        match action:
            case Acquire(bundle, lease):
                if self.leases.get(broker) == lease and bundle not in self.keys:
                    version = self.change(bundle, OwnerRecord(broker, lease))
                    if self.rng.random() < 0.8:
                        self.answers.append((broker, bundle, version, lease))
                    else:
                        made.on_refused(bundle, self.now)  # the answer was lost
                else:
                    made.on_refused(bundle, self.now)
            case Close(bundle, version, to):
                assert made.held[bundle].state is Holding.CLOSING
                unchanged = version >= 0 and bundle in self.keys and self.keys[bundle][1] == version
                if to is not None and unchanged and to.lease in self.leases.values():
                    handed = self.change(bundle, to)
                    if self.rng.random() < 0.8:
                        self.do(broker, made.on_closed(bundle, False, self.now, handed))
                    else:
                        self.do(broker, made.on_closed(bundle, False, self.now))  # the answer was lost
                    return
                released = version >= 0 and bundle in self.keys and self.keys[bundle][1] == version
                if released:
                    self.change(bundle, None)
                released = released and self.rng.random() < 0.8  # or the answer was lost
                self.do(broker, made.on_closed(bundle, released, self.now))
            case Forget(bundle, version):
                if self.rng.random() < 0.8 and bundle in self.keys and self.keys[bundle][1] == version:
                    self.change(bundle, None)
            case Load():
                pass

    def step(self) -> None:
        self.now += self.rng.random() * 0.1
        broker = self.rng.choice(sorted(self.cores))
        made = self.cores[broker]
        match self.rng.randrange(12):
            case 0 if broker in self.leases:
                self.expire(broker)
            case 1 if broker not in self.leases:
                self.do(broker, made.on_lease_lost())
                self.grant(broker)
            case 2 if self.rng.random() < 0.5:
                self.do(broker, made.release(self.rng.choice(BUNDLES)))
            case 2:  # any broker may order a move, by what it has seen
                bundle = self.rng.choice(BUNDLES)
                order = made.transfer(bundle, self.rng.choice(sorted(self.cores)))
                if (
                    order is not None
                    and order[0].lease in self.leases.values()
                    and bundle in self.keys
                    and self.keys[bundle][1] == order[1]
                ):
                    self.moves += 1
                    self.change(bundle, order[0])
            case 3 if self.rng.random() < 0.2:
                self.expire(broker) if broker in self.leases else None
                self.boot(broker)
            case 4:
                self.do(broker, made.find(self.rng.choice(BUNDLES), self.rng.random() < 0.5)[1])
            case _:
                self.progress(broker)

    def progress(self, broker: str) -> None:
        made = self.cores[broker]
        if self.work and self.rng.random() < 0.6:
            self.carry_out()
        mine = [a for a in self.answers if a[0] == broker]
        if mine and self.rng.random() < 0.5:
            answer = self.rng.choice(mine)
            self.answers.remove(answer)
            self.do(broker, made.on_acquired(*answer[1:], self.now))
        if self.seen[broker] < len(self.log):
            bundle, owner, version = self.log[self.seen[broker]]
            self.seen[broker] += 1
            self.do(broker, made.on_owner(bundle, owner, version, self.now))
        self.do(broker, made.on_time(self.now))

    def check(self) -> None:
        for broker, made in self.cores.items():
            for bundle, held in made.held.items():
                if held.state is not Holding.OWNED:
                    continue
                assert held.version in self.named[broker, bundle], (
                    "owned only at a version whose value names this broker"
                )
                newest = max((v for b, _, v in self.log[: self.seen[broker]] if b == bundle), default=-1)
                assert newest <= held.version, "a later change that was seen has ended it"


@pytest.mark.parametrize("seed", range(150))
def test_whoever_owns_has_written_it_and_in_the_end_each_bundle_has_one_owner(seed: int) -> None:
    world = World(seed)
    for _ in range(400):
        world.step()
        world.check()
    for _ in range(2000):
        world.now += 0.05
        for broker in sorted(world.cores):
            if broker not in world.leases:
                world.do(broker, world.cores[broker].on_lease_lost())
                world.grant(broker)
            world.progress(broker)
            if world.rng.random() < 0.02:  # a client asks
                world.do(broker, world.cores[broker].find(world.rng.choice(BUNDLES), True)[1])
        world.check()
    for bundle in BUNDLES:
        assert [b for b, made in world.cores.items() if made.owns(bundle)] == [world.keys[bundle][0].broker]
        for made in world.cores.values():
            found = made.find(bundle, False)[0]
            assert isinstance(found, Here) or (
                isinstance(found, There) and found.broker.broker == world.keys[bundle][0].broker
            )
