"""Who may confirm what is published to an active-passive namespace, and who may hand out a subscription's messages, as
the global configuration says it.

Is: the values and their keys. Isn't: the rule how they change (`region_node.dr.leadership.leadership_changes`), or what
a broker makes of them (`region_node.dr.leadership.write_gates`).
Keys: /leadership/{tenant}/{namespace} (Leadership), /leadership-ended/{tenant}/{namespace} (the last epoch of the one
before, where every region takes messages, or did), /subscription-leadership/{topic's full name}/{subscription}
(Leadership), /writers/{region}/{broker}.{lease} (Writer, under that lease: a broker that was started anew does not
speak for its earlier life).
Source: docs/protocols/leadership.md.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.configuration.configuration_records import _Value

LEADERSHIPS = "/leadership"
"""Begins the keys that say something of the leaderships of namespaces, those that were too."""
LEADERSHIP = f"{LEADERSHIPS}/"
ENDED = f"{LEADERSHIPS}-ended/"
FLOOR = f"{LEADERSHIPS}-floor"
"""A number that no epoch of before a restore of the configuration comes near; there is none where nothing was restored.
"""
DELETED = f"{LEADERSHIPS}-deleted"
"""The highest epoch of a namespace that was deleted: those of all that become active-passive later lie above it."""
SUBSCRIPTIONS = "/subscription-leadership/"
WRITERS = "/writers/"

EPOCHS_IN_MS = 1 << 28
"""From here on epochs are such as a restore makes: the clock's milliseconds."""
EPOCHS_IN_MS_STEP = 4096
"""By so much such an epoch rises: so that the epochs of one leadership are apart in an int32, too, as Kafka's clients
are given them.
"""

OPEN, DRAINING, FENCED = "open", "draining", "fenced"


@dataclass(frozen=True, slots=True, kw_only=True)
class Leadership(_Value):
    """Says who leads one namespace, or one subscription. `epoch` rises whenever another region becomes the active one,
    and never falls: of a namespace not even where every region took messages meanwhile.
    """

    active: str
    epoch: int = 1
    began: int = 1
    """The epoch in which the namespace became active-passive: since then one region at a time publishes."""
    state: str = OPEN
    """open: the active region takes messages. draining: it takes none and confirms what it took. fenced: it confirms
    nothing any more.

    Of a subscription: hands out messages; hands out none and waits for acknowledgements of those it handed out; takes
    them back from its consumers.
    """
    to: str = ""
    """Which region comes next, while the state is not open."""
    since_ms: int = 0
    """Wall time of the last change, for people."""
    slo: dict[str, float] = field(default_factory=dict)
    """What is promised: `rpo_s`, `rto_s`; absent: nothing is."""
    heard: tuple[str, ...] = ()
    """The regions of which every broker has heard that there is this leadership, and does not go on without it any
    more. Until it has all regions of its namespace it is not effective.
    """
    asks: str = ""
    """Why nobody publishes until somebody says which region is the active one; "": it is known. A namespace that asks
    is fenced.
    """
    gone: tuple[str, ...] = ()
    """The regions that have deleted the subscription, or do not have it; it ends with the last one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer(_Value):
    """What one broker obeys: every leadership through version `since`; those in `seen` through the version that stands
    there, be it higher, or lower (a drain that it has not finished).
    """

    since: int = 0
    seen: dict[str, int] = field(default_factory=dict)
    beside: tuple[str, ...] | None = None
    """The brokers that its region has, itself among them, or not; None: it does not know yet, and does not count as one
    that has heard of anything.
    """

    @property
    def format(self) -> int:
        """An earlier version takes the higher of `since` and what stands in `seen`."""
        return 3 if any(version < self.since for version in self.seen.values()) else 1

    def obeys(self, namespace: str, version: int) -> bool:
        """Whether it knows, and has done, what the leadership of that version asks for."""
        return self.seen.get(namespace, self.since) >= version


def following(epoch: int) -> int:
    """The epoch behind this one."""
    return epoch + (1 if epoch < EPOCHS_IN_MS else EPOCHS_IN_MS_STEP)


def preceding(epoch: int) -> int:
    """The epoch that this one follows."""
    return epoch - (1 if epoch - EPOCHS_IN_MS_STEP < EPOCHS_IN_MS else EPOCHS_IN_MS_STEP)


def leadership(name: str) -> str:
    """name: `tenant/namespace`, or as `subscription_name` makes it."""
    return (SUBSCRIPTIONS if is_subscription(name) else LEADERSHIP) + name


def subscription_name(topic: str, subscription: str) -> str:
    """topic: its full name, without a partition: all partitions are active in the same region."""
    return f"{topic}/{subscription}"


def is_subscription(name: str) -> bool:
    return "://" in name


def namespace_of(name: str) -> str:
    """The namespace of what `leadership` takes. Of very many names it is asked again and again: nothing is checked."""
    return "/".join(name.partition("://")[2].split("/", 2)[:2]) if is_subscription(name) else name


def name_of(key: str) -> str:
    """The name behind a key that `leadership` made."""
    return key.removeprefix(SUBSCRIPTIONS if key.startswith(SUBSCRIPTIONS) else LEADERSHIP)


def writers(region: str) -> str:
    return f"{WRITERS}{region}/"


def writer(region: str, broker: str, lease: int) -> str:
    return f"{WRITERS}{region}/{broker}.{lease}"
