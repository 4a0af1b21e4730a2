"""OwnershipCore: says which bundles this broker owns, wants, and gives up.

Is: the decisions of one broker, from what it sees of the local metadata (live brokers, owner keys, its own lease,
namespaces).
Isn't: I/O, time-outs of calls, or safety of the data: a lease decides who tries, fencing of the ledger decides who
wins.
Invariants:
- a bundle is OWNED only at a version whose value names this broker under its present lease: its own compare-and-set
  wrote it, or the hand-over of the owner before;
- a bundle that is being closed is not taken again before its topics are closed;
- a lost lease, or an owner key that another wrote later, closes the bundle without touching the key;
- a draining broker takes nothing;
- a broker that may not serve a bundle neither takes it nor hands it to another such one, while a permitted one lives.
Source: docs/protocols/ownership.md.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.runtime.clock import Rng
from region_node.placement.ownership.broker_records import BrokerRecord, LiveBrokers, OwnerRecord

Bundle = tuple[str, int]
"""(namespace, index of the hash range)."""
Place = Callable[[Sequence[str], Bundle], str]
"""(live brokers that may serve it, at least one; the bundle) -> the one that shall."""
Permit = Callable[[str, Mapping[str, BrokerRecord]], Sequence[str]]
"""(a namespace; live brokers) -> those of them that may serve it; none only where none lives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BundleRules:
    """`place`: where a bundle that nobody has shall go; None: by chance. `permit`: who may serve it; None:
    everybody may.
    """

    place: Place | None = None
    permit: Permit | None = None


_ASK_AGAIN_S = 1.0
"""A broker that may not take a vacant bundle looks so much later whether it may by then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipSettings:
    lease_ttl_ms: int = setting(3000, "ms", least=100, most=60_000, theirs="metadataStoreSessionTimeoutMillis")
    """A broker that is silent for so long has lost its bundles."""
    lease_grace_s: float = setting(30.0, "s", least=0, most=600)
    """How long loaded topics are served while the local metadata does not answer at all. A lease that is said to be
    lost ends them at once.
    """
    takeover_delay_s: float = setting(0.2, "s", least=0, most=600)
    """A vanished owner is followed after a random time up to this, so that not all brokers try at once."""
    hand_over_s: float = setting(0.5, "s", least=0, most=600)
    """A broker that gave a bundle up leaves it to others for so long."""
    lookup_timeout_s: float = setting(5.0, "s", least=0, most=600)
    """How long a lookup waits for an owner."""
    unload_timeout_s: float = setting(10.0, "s", least=0, most=600, theirs="namespaceBundleUnloadingTimeoutMs (ms)")
    """How long a bundle that is unloaded waits for its topics to close."""

    def __post_init__(self) -> None:
        check_bounds(self, "broker.ownership")


class Holding(Enum):
    ACQUIRING = "acquiring"
    OWNED = "owned"
    CLOSING = "closing"


@dataclass(slots=True)
class _Held:
    state: Holding
    version: int = -1
    handed: OwnerRecord | None = None


# -- actions, to be carried out in the given order ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Acquire:
    """Write the owner key where it is absent, under `lease`; then `on_acquired` or `on_refused`."""

    bundle: Bundle
    lease: int


@dataclass(frozen=True, slots=True)
class Load:
    """The bundle is ours: load what must run without clients."""

    bundle: Bundle


@dataclass(frozen=True, slots=True)
class Close:
    """Close the bundle's topics, then delete the owner key at `version` (-1: leave it alone), then `on_closed`.

    to: the value to write there instead, under its lease: the next owner. Where that one is gone, the key is deleted.
    """

    bundle: Bundle
    version: int
    to: OwnerRecord | None = None


@dataclass(frozen=True, slots=True)
class Forget:
    """Delete the owner key at `version`: an earlier life of this broker left it."""

    bundle: Bundle
    version: int


Action = Acquire | Load | Close | Forget


# -- what a lookup finds ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Here:
    """This broker owns the bundle, and answers for its topics itself."""


@dataclass(frozen=True, slots=True)
class There:
    """`redirect`: that broker does not own it yet, but shall take it when asked."""

    broker: BrokerRecord
    redirect: bool


@dataclass(frozen=True, slots=True)
class Moving:
    """Nobody answers for it at this moment; ask again after the next event."""

    reason: str


Found = Here | There | Moving


class OwnershipCore:
    """One broker's view; `now` is monotonic seconds."""

    def __init__(
        self,
        broker: str,
        rng: Rng,
        settings: OwnershipSettings,
        rules: BundleRules | None = None,
        live: LiveBrokers | None = None,
    ) -> None:
        """rules: None: by chance, and everybody may serve everything. live: where others know the live brokers from."""
        place, permit = (rules.place, rules.permit) if rules is not None else (None, None)
        self.broker, self.settings = broker, settings
        self._permit: Permit = permit if permit is not None else lambda namespace, live: sorted(live)
        self._place: Place = place if place is not None else lambda candidates, bundle: rng.choice(candidates)
        self.lease = 0
        self.draining = False
        self.brokers = (live or LiveBrokers()).by_name
        self.held: dict[Bundle, _Held] = {}
        self._rng = rng
        self._owners: dict[Bundle, OwnerRecord] = {}
        self._seen: dict[Bundle, int] = {}
        self._served: dict[str, tuple[int, bool]] = {}
        self._claims: dict[Bundle, float] = {}
        self._given_up: dict[Bundle, None] = {}
        """Until its claim comes due, a lookup here sends others for it."""

    # -- events -------------------------------------------------------------------------------------------------------

    def on_lease(self, lease: int, now: float) -> list[Action]:
        """A new lease; keys that earlier lives of this broker left are cleared away, standing bundles claimed."""
        self.lease = lease
        for namespace, (bundles, standing) in sorted(self._served.items()):
            if standing:
                self._claim_vacant(namespace, bundles, now)
        stale = [
            b
            for b, o in sorted(self._owners.items())
            if o.broker == self.broker and o.lease != lease and b not in self.held
        ]
        return [Forget(bundle, self._seen[bundle]) for bundle in stale]

    def on_lease_lost(self) -> list[Action]:
        """All keys under the lease are gone: whoever is quicker owns them. Bundles are closed, not released."""
        self.lease = 0
        return [action for bundle in sorted(self.held) for action in self._close(bundle, release=False)]

    def on_broker(self, broker: str, record: BrokerRecord | None) -> None:
        if record is None:
            self.brokers.pop(broker, None)
        else:
            self.brokers[broker] = record

    def on_namespace(self, namespace: str, bundles: int, standing: bool, now: float) -> list[Action]:
        """`bundles`: 0 where it is not served here (any more). `standing`: its bundles are owned at all times, for
        links that run without clients.

        Also after a split: `bundles` is one more then, and the new one is owned by whoever split it. Fewer: the
        namespace was made anew.
        """
        if not bundles:
            self._served.pop(namespace, None)
            for bundle in [b for b in self._claims if b[0] == namespace]:
                del self._claims[bundle]
            return [
                action
                for bundle in sorted(self.held)
                if bundle[0] == namespace
                for action in self._close(bundle, release=True)
            ]
        before = self._served.get(namespace, (0, False))
        self._served[namespace] = (bundles, standing)
        gone = (
            [bundle for bundle in sorted(self.held) if bundle[0] == namespace and bundle[1] >= bundles]
            if bundles < before[0]
            else []
        )
        actions = [action for bundle in gone for action in self._close(bundle, release=True)]
        if not standing:
            return actions
        self._claim_vacant(namespace, bundles, now)
        if not before[1]:
            actions += [Load(bundle) for bundle in sorted(self.held) if bundle[0] == namespace and self.owns(bundle)]
        return actions

    def on_owner(self, bundle: Bundle, owner: OwnerRecord | None, version: int, now: float) -> list[Action]:
        """The owner key as the metadata shows it; `version` of a deletion is not below that of the deleted value."""
        seen = self._seen.get(bundle, -1)
        if version < seen or (version == seen and owner is not None):
            return []
        self._seen[bundle] = version
        held = self.held.get(bundle)
        if owner is None:
            self._owners.pop(bundle, None)
            if held is not None and held.state is Holding.OWNED:
                return self._close(bundle, release=False)
            if held is None:
                self._claim(bundle, now, 0.0)
            return []
        self._owners[bundle] = owner
        self._claims.pop(bundle, None)
        self._given_up.pop(bundle, None)
        if owner.broker == self.broker and owner.lease == self.lease and self.lease:
            if held is None and (self.draining or owner.to):
                return [Forget(bundle, version)]
            taken = (
                self.on_acquired(bundle, version, owner.lease, now)
                if held is None or held.state is Holding.ACQUIRING
                else []
            )
            return [*taken, *self._hand_over(bundle, owner.to, version)] if owner.to else taken
        if held is not None and held.state is Holding.OWNED:
            return self._close(bundle, release=False)
        if owner.broker == self.broker and held is None and self.lease:
            return [Forget(bundle, version)]
        return []

    def on_acquired(self, bundle: Bundle, version: int, lease: int, now: float) -> list[Action]:
        """Our compare-and-set wrote the key under `lease`. Meanwhile that may have been lost, or another broker have
        followed us.
        """
        held = self.held.get(bundle)
        if lease != self.lease or (held is not None and held.state is not Holding.ACQUIRING):
            return []
        if version < self._seen.get(bundle, -1):
            self.held.pop(bundle, None)
            if bundle not in self._owners:
                self._claim(bundle, now, 0.0)
            return []
        self._seen[bundle] = version
        self._owners[bundle] = OwnerRecord(self.broker, lease)
        self._claims.pop(bundle, None)
        self.held[bundle] = _Held(Holding.OWNED, version)
        return self._close(bundle, release=True) if self.draining or bundle[0] not in self._served else [Load(bundle)]

    def on_refused(self, bundle: Bundle, now: float) -> None:
        """The compare-and-set did not write the key. The owner, where there is one, comes by `on_owner`."""
        held = self.held.get(bundle)
        if held is not None and held.state is Holding.ACQUIRING:
            del self.held[bundle]
            if bundle not in self._owners and self._served.get(bundle[0], (0, False))[1]:
                self._claim(bundle, now, self.settings.hand_over_s)

    def on_closed(self, bundle: Bundle, released: bool, now: float, handed: int = -1) -> list[Action]:
        """The bundle's topics are closed. `released`: its key is deleted; else it went with the lease, or will, or is
        another's.

        handed: the version at which the next owner was written; -1: nobody was.
        """
        held = self.held.get(bundle)
        if held is None or held.state is not Holding.CLOSING:
            return []
        del self.held[bundle]
        owner = self._owners.get(bundle)
        if handed >= 0 and held.handed is not None:
            if handed > self._seen.get(bundle, -1):
                self._seen[bundle], self._owners[bundle] = handed, held.handed
            return []
        if released and owner is not None and self._seen[bundle] == held.version:
            del self._owners[bundle]
        elif owner is not None and owner.broker == self.broker and self.lease:
            return [Forget(bundle, self._seen[bundle])]
        if bundle not in self._owners:
            self._claim(bundle, now, self.settings.hand_over_s)
            self._given_up[bundle] = None
        return []

    def on_time(self, now: float) -> list[Action]:
        """Takes what is still vacant when its moment has come."""
        if not self.lease or self.draining:
            return []
        due = sorted(bundle for bundle, at in self._claims.items() if at <= now)
        for bundle in due:
            del self._claims[bundle]
            self._given_up.pop(bundle, None)
        actions: list[Action] = []
        for bundle in due:
            if bundle in self._owners:
                continue
            if self.broker in self.permitted(bundle):
                actions += self.take(bundle)
            else:  # whoever may is about to; or dies before it does
                self._claims[bundle] = now + _ASK_AGAIN_S
        return actions

    def next_deadline(self) -> float | None:
        """When `on_time` has something to do; None: after some other event."""
        return min(self._claims.values(), default=None) if self.lease and not self.draining else None

    # -- requests -----------------------------------------------------------------------------------------------------

    def take(self, bundle: Bundle) -> list[Action]:
        """Begins to acquire a bundle, where that is possible."""
        if not self.lease or self.draining or bundle in self.held:
            return []
        self.held[bundle] = _Held(Holding.ACQUIRING)
        return [Acquire(bundle, self.lease)]

    def release(self, bundle: Bundle) -> list[Action]:
        """Gives an owned bundle up, for others to take."""
        return self._close(bundle, release=True)

    def drain(self) -> list[Action]:
        """Gives everything up and takes nothing any more. Each bundle is handed to a broker of choice, where there is
        one.
        """
        self.draining = True
        self._claims.clear()
        actions: list[Action] = []
        for bundle in sorted(self.held):
            others = self.permitted(bundle)
            actions += self._close(bundle, release=True, to=self._place(others, bundle) if others else "")
        return actions

    def permitted(self, bundle: Bundle) -> Sequence[str]:
        """The live brokers that may serve it, in order; this one is not among them while it drains."""
        return self._permit(bundle[0], self._live())

    def misplaced(self) -> list[tuple[Bundle, str]]:
        """The bundles whose owner lives and may not serve them, with that owner; without those that are on their way to
        another.
        """
        live, may, found = self._live(), dict[str, Sequence[str]](), []
        for bundle, owner in self._owners.items():
            if bundle[0] not in may:
                may[bundle[0]] = self._permit(bundle[0], live)
            if owner.broker in live and not owner.to and owner.broker not in may[bundle[0]]:
                found.append((bundle, owner.broker))
        return found

    def transfer(self, bundle: Bundle, to: str) -> tuple[OwnerRecord, int] | None:
        """The value to write over the owner key at that version, under the value's lease, so that the owner hands the
        bundle to `to`.

        None: nobody owns it, or it is in motion, or there already, or `to` is not here.
        """
        owner = self._owners.get(bundle)
        if owner is None or owner.to or owner.broker == to or to not in self.brokers:
            return None
        return OwnerRecord(owner.broker, owner.lease, to), self._seen[bundle]

    def divisible(self, bundle: Bundle) -> tuple[int, int] | None:
        """(version of the owner key, lease) under which this broker may split a bundle; None: it does not own it, or is
        giving it up.
        """
        held, owner = self.held.get(bundle), self._owners.get(bundle)
        if (
            held is None
            or held.state is not Holding.OWNED
            or owner is None
            or owner.to
            or self.draining
            or owner.lease != self.lease
        ):
            return None
        return held.version, self.lease

    def coming(self, bundle: Bundle) -> bool:
        """Whether it is on its way to this broker."""
        owner, held = self._owners.get(bundle), self.held.get(bundle)
        return (owner is not None and owner.to == self.broker) or (held is not None and held.state is Holding.ACQUIRING)

    def owns(self, bundle: Bundle) -> bool:
        held = self.held.get(bundle)
        return held is not None and held.state is Holding.OWNED

    def owner(self, bundle: Bundle) -> BrokerRecord | None:
        """Another live broker that owns it, as far as is known."""
        owner = self._owners.get(bundle)
        return None if owner is None or owner.broker == self.broker else self.brokers.get(owner.broker)

    def find(self, bundle: Bundle, authoritative: bool) -> tuple[Found, list[Action]]:
        """Who answers for a bundle. `authoritative`: another broker has chosen this one, which shall not choose
        again.
        """
        held = self.held.get(bundle)
        if held is not None:
            return (
                Here()
                if held.state is Holding.OWNED
                else Moving("is being unloaded" if held.state is Holding.CLOSING else "is being acquired")
            ), []
        owner = self._owners.get(bundle)
        if owner is not None:
            if (owner.broker, owner.lease) == (
                self.broker,
                self.lease,
            ) and not self.draining:  # given up, but the key could not be deleted
                self.held[bundle] = _Held(Holding.OWNED, self._seen[bundle])
                if owner.to:
                    return Moving(f"is on its way to {owner.to}"), self._hand_over(bundle, owner.to, self._seen[bundle])
                return Here(), [Load(bundle)]
            record = self.brokers.get(owner.broker)
            if owner.to:
                return Moving(f"is on its way to {owner.to}"), []
            if owner.broker == self.broker or record is None:
                return Moving("has just lost its owner"), []
            return There(record, redirect=False), []
        permitted = self.permitted(bundle)
        candidates = [b for b in permitted if b != self.broker]
        if self.broker in permitted and bundle not in self._given_up:
            candidates = [] if bundle in self._claims else list(permitted)
        if authoritative and self.broker in permitted:
            candidates = []
        if candidates and (chosen := self._place(candidates, bundle)) != self.broker:
            return There(self.brokers[chosen], redirect=True), []
        return Moving("is being acquired"), self.take(bundle)

    # -- inside -------------------------------------------------------------------------------------------------------

    def _live(self) -> dict[str, BrokerRecord]:
        """The brokers that can be given a bundle, as this one sees them."""
        live = {broker: record for broker, record in self.brokers.items() if broker != self.broker}
        if self.lease and not self.draining:
            live[self.broker] = self.brokers.get(self.broker) or BrokerRecord(self.broker)
        return live

    def _claim_vacant(self, namespace: str, bundles: int, now: float) -> None:
        for index in range(bundles):
            bundle = (namespace, index)
            if bundle not in self._owners and bundle not in self.held and bundle not in self._claims:
                self._claim(bundle, now, 0.0)

    def _claim(self, bundle: Bundle, now: float, head_start_s: float) -> None:
        """Plans to take a vacant bundle; a later plan wins, so that a broker that gave it up stays behind."""
        bundles, _ = self._served.get(bundle[0], (0, False))
        if bundle[1] < bundles and not self.draining:
            at = now + head_start_s + self._rng.uniform(0, self.settings.takeover_delay_s)
            self._claims[bundle] = max(at, self._claims.get(bundle, at))

    def _hand_over(self, bundle: Bundle, to: str, version: int) -> list[Action]:
        """Somebody wrote into our key who shall have the bundle."""
        held = self.held.get(bundle)
        if held is not None and held.state is Holding.OWNED:
            held.version = version
        return self._close(bundle, release=True, to=to)

    def _close(self, bundle: Bundle, *, release: bool, to: str = "") -> list[Action]:
        held = self.held.get(bundle)
        if held is None or held.state is Holding.CLOSING:
            return []
        if held.state is Holding.ACQUIRING:  # its answer is still to come, and finds no lease or a draining broker
            if not release:
                del self.held[bundle]
            return []
        held.state = Holding.CLOSING
        receiver = self.brokers.get(to) if release else None
        if receiver is not None and receiver.lease:
            held.handed = OwnerRecord(to, receiver.lease)
        return [Close(bundle, held.version if release else -1, held.handed)]
