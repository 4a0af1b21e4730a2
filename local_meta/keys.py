"""Keys of a region's local metadata: those that several packages ask for.

Others stand beside what they hold: schemas, epochs of producers, ids of topics, and what is Kafka's (`/kafka/…`).

Is: key strings and ranges from names, and names back from keys. Isn't: values (heliograph.model.ledger_metadata), or
who may write them.
Invariants: a name never spills over into another key (it is percent-quoted); numbers are padded, so that key order is
number order; topic keys are ordered (namespace, hash, topic), so that a bundle is one range.

    /bookies/{id}                                            a live bookie, under its lease
    /brokers/{id}                                            a live broker, under its lease
    /metadata-nodes/{id}                                     what a node of this metadata speaks (local_meta.node_level)
    /instance                                                the id of this metadata; another one after a restore
    /history                                                 the leaderships of this metadata (heliograph.kv.history)
    /ledger-ids-passed-over                                  which ledger ids it never gives out (local_meta.ledger_ids)
    /owners/{tenant}/{namespace}/{bundle:05}                 which broker owns a bundle, under that broker's lease
    /bundles/{tenant}/{namespace}                            the hash ranges of a namespace's bundles in this region,
                                                             once one was split
    /load/{id}                                               what a broker carries, under its lease
    /balance/leader                                          which broker has bundles moved, under its lease
    /hosts/turn                                              which host is restarted just now, under a lease
                                                             (region_node.hosts)
    /balance/paused                                          until when nothing is moved
    /group-use/{id}                                          what a broker uses of resource groups, under its lease
    /isolation/{name}                                        an isolation policy: which brokers serve which namespaces
    /failure-domains/{name}                                  brokers that fail together
    /quotas/{tenant}/{namespace}/{low:08x}-{high:09x}        what is set aside for a hash range; /quotas/default: for
                                                             every bundle without
    /ledgers/{id:020}                                        LedgerMetadata
    /located/{id:020}                                        LocatedLedger: under which number the entries lie of a
                                                             ledger that was written anew under another data key
    /reseals/{tenant}                                        ResealJob: that a tenant's older ledgers are written anew,
                                                             and how far that is
    /underreplicated/{id:020}                                a ledger that lacks copies: which bookies are lost
                                                             (storage.ledger.repair.lost_bookies)
    /replicating/{id:020}                                    which broker copies it just now, under that broker's lease
    /auditor                                                 which broker looks for lost bookies, under its lease
    /decommissions/{id}                                      a bookie that is being emptied
    /bookie-labels/{id}                                      rack and group of a bookie, as an operator says
                                                             (storage.ledger.bookies.bookie_labels)
    /bookie-cookies/{id}                                     which life of a bookie the region knows
                                                             (storage.ledger.bookies.bookie_cookie)
    /bookie-whole/{id}                                       the life in which a bookie has its copies again, as the
                                                             auditor has found (storage.ledger.repair.new_lives)
    /ml/{tenant}/{namespace}/{hash:08x}/{topic}              ManagedLedgerMetadata
    /ml-pages/{tenant}/{namespace}/{hash:08x}/{topic}/{first ledger:020}
                                                             a page of its ledgers, where they are very many
    /cursors/{tenant}/{namespace}/{hash:08x}/{topic}/{name}  a durable cursor
    /topic-policies/{tenant}/{namespace}/{hash:08x}/{topic}  what is set for a topic in this region (a partitioned one
                                                             as a whole)
    /broker-policies                                         what is set for all brokers of this region
    /security/revocations/{kind}/{name}                      this region's copy of what was revoked
    /security/brokers  /security/brokers-before              by which brokers know each other; the one before
                                                             (region_node.security.authentication.internal_tokens)
    /security/reads                                          keys with which brokers permit reads of bookies
                                                             (region_node.security.read_permits)
    /configuration-seen                                      the version of this region's mark in the global
                                                             configuration, and when that was restored last
                                                             (region_node.dr.leadership.configuration_age)
    /seen-by/bookies/{id}  /seen-by/tiers/{holder}           the mark of who deletes by this metadata
                                                             (local_meta.metadata_age)
    /tier-claims/{tenant}/{namespace}/{hash:08x}/{topic}     whether a topic is being restored from objects, or objects
                                                             of it are being deleted, under a lease
                                                             (storage.tiered.offload.object_claims)
    counters, apart from keys: ledger-ids
"""

from __future__ import annotations

from urllib.parse import quote, unquote

from heliograph.kv.metadata_store import prefix_end
from heliograph.model.topic_names import TopicName, topic_hash

BOOKIES = "/bookies/"
BROKERS = "/brokers/"
METADATA_NODES = "/metadata-nodes/"
INSTANCE = "/instance"
BROKERS_SECRET = "/security/brokers"
PASSED_OVER = "/ledger-ids-passed-over"
CONFIGURATION_SEEN = "/configuration-seen"
OWNERS = "/owners/"
BUNDLES = "/bundles/"
LOADS = "/load/"
BALANCE = "/balance/"
BALANCE_LEADER = "/balance/leader"
BALANCE_PAUSED = "/balance/paused"
GROUP_USES = "/group-use/"
ISOLATION = "/isolation/"
FAILURE_DOMAINS = "/failure-domains/"
QUOTAS = "/quotas/"
QUOTA_DEFAULT = "/quotas/default"
LEDGERS = "/ledgers/"
LOCATED = "/located/"
"""Behind `/ledgers/`, and before the topics: a restore reads them in this order."""
RESEALS = "/reseals/"
UNDERREPLICATED = "/underreplicated/"
REPLICATING = "/replicating/"
AUDITOR = "/auditor"
COPIES_CHECKED = "/copies-checked"
"""How far the check of what bookies hold has come."""
DECOMMISSIONS = "/decommissions/"
SEEN_BY = "/seen-by/"
SEEN_BY_BOOKIES = SEEN_BY + "bookies/"
BOOKIE_LABELS = "/bookie-labels/"
BOOKIE_COOKIES = "/bookie-cookies/"
BOOKIE_WHOLE = "/bookie-whole/"
MANAGED_LEDGERS = "/ml/"
LEDGER_PAGES = "/ml-pages/"
CURSORS = "/cursors/"
TOPIC_POLICIES = "/topic-policies/"
TIER_CLAIMS = "/tier-claims/"
BROKER_POLICIES = "/broker-policies"
READ_KEYS = "/security/reads"
REVOKED = "/security/revocations/"

LEDGER_IDS = "ledger-ids"
"""Counter: the next ledger id of the region; each leader raises it to the wall clock in ms (local_meta.ledger_ids)."""


def _quoted(name: str) -> str:
    return quote(name, safe=":-_.=")


def bookie(bookie_id: str) -> str:
    return BOOKIES + _quoted(bookie_id)


def broker(broker_id: str) -> str:
    return BROKERS + _quoted(broker_id)


def metadata_node(node_id: str) -> str:
    return METADATA_NODES + _quoted(node_id)


def load(broker_id: str) -> str:
    return LOADS + _quoted(broker_id)


def group_use(broker_id: str) -> str:
    return GROUP_USES + _quoted(broker_id)


def isolation(name: str) -> str:
    return ISOLATION + _quoted(name)


def failure_domain(name: str) -> str:
    return FAILURE_DOMAINS + _quoted(name)


def quota(namespace: str, low: int, high: int) -> str:
    """Names the quota of the hashes [low, high) of a namespace."""
    return f"{QUOTAS}{_namespace(namespace)}/{low:08x}-{high:09x}"


def quota_of(key: str) -> tuple[str, tuple[int, int]]:
    """(namespace, (low, high)) of a quota's key, the default's apart."""
    _, _, tenant, local, bounds = key.split("/")
    low, _, high = bounds.partition("-")
    return f"{unquote(tenant)}/{unquote(local)}", (int(low, 16), int(high, 16))


def id_of(key: str) -> str:
    """The bookie or broker that a key of `/bookies/` or `/brokers/` speaks of; of any key, its last part."""
    return unquote(key.rpartition("/")[2])


def ledger(ledger_id: int) -> str:
    return f"{LEDGERS}{ledger_id:020d}"


def located(ledger_id: int) -> str:
    return f"{LOCATED}{ledger_id:020d}"


def ledger_of(key: str) -> int:
    """Returns the ledger of a key of `/ledgers/`, `/underreplicated/`, or `/replicating/`; for one of `/ml-pages/`, the
    ledger that names the page.
    """
    return int(key.rpartition("/")[2])


def underreplicated(ledger_id: int) -> str:
    return f"{UNDERREPLICATED}{ledger_id:020d}"


def replicating(ledger_id: int) -> str:
    return f"{REPLICATING}{ledger_id:020d}"


def bookie_labels(bookie_id: str) -> str:
    return BOOKIE_LABELS + _quoted(bookie_id)


def bookie_cookie(bookie_id: str) -> str:
    return BOOKIE_COOKIES + _quoted(bookie_id)


def bookie_whole(bookie_id: str) -> str:
    return BOOKIE_WHOLE + _quoted(bookie_id)


def seen_by_bookie(bookie_id: str) -> str:
    return SEEN_BY_BOOKIES + _quoted(bookie_id)


def seen_by_tiers(holder: str) -> str:
    return f"{SEEN_BY}tiers/{_quoted(holder)}"


def decommission(bookie_id: str) -> str:
    return DECOMMISSIONS + _quoted(bookie_id)


# -- ownership --------------------------------------------------------------------------------------------------------


def owner(namespace: str, bundle: int) -> str:
    """Names a bundle's owner. namespace: `tenant/namespace`."""
    return f"{owners(namespace)}{bundle:05d}"


def owners(namespace: str) -> str:
    """Prefix of the owner keys of one namespace."""
    return f"{OWNERS}{_namespace(namespace)}/"


def owner_of(key: str) -> tuple[str, int]:
    """(namespace, bundle) of an owner key."""
    _, _, tenant, local, bundle = key.split("/")
    return f"{unquote(tenant)}/{unquote(local)}", int(bundle)


def bundles(namespace: str) -> str:
    return BUNDLES + _namespace(namespace)


def namespace_of(key: str) -> str:
    """Returns the `tenant/namespace` of a key of `/bundles/`."""
    _, _, tenant, local = key.split("/")
    return f"{unquote(tenant)}/{unquote(local)}"


# -- topics -----------------------------------------------------------------------------------------------------------


def managed_ledger(topic: str) -> str:
    """Names a topic's managed ledger. topic: its full name."""
    return MANAGED_LEDGERS + _topic(topic)


def reseal(tenant: str) -> str:
    return RESEALS + _quoted(tenant)


def managed_ledgers_of(tenant: str) -> str:
    """Prefix of all managed ledgers of a tenant."""
    return f"{MANAGED_LEDGERS}{_quoted(tenant)}/"


def managed_ledgers(namespace: str) -> str:
    """Prefix of all managed ledgers of a namespace."""
    return f"{MANAGED_LEDGERS}{_namespace(namespace)}/"


def managed_ledgers_between(namespace: str, low: int, high: int) -> tuple[str, str]:
    """[start, end) of the managed ledgers of the topics whose hashes are in [low, high): those of a bundle."""
    return _between(managed_ledgers(namespace), low, high)


def tier_claim(topic: str) -> str:
    return TIER_CLAIMS + _topic(topic)


def ledger_page(topic: str, first_ledger: int) -> str:
    return f"{ledger_pages(topic)}{first_ledger:020d}"


def ledger_pages(topic: str) -> str:
    """Prefix of the pages of one topic's ledgers."""
    return f"{LEDGER_PAGES}{_topic(topic)}/"


def cursor(topic: str, name: str) -> str:
    return cursors(topic) + _quoted(name)


def cursors(topic: str) -> str:
    """Prefix of all cursors of one topic."""
    return f"{CURSORS}{_topic(topic)}/"


def cursors_of_namespace(namespace: str) -> str:
    return f"{CURSORS}{_namespace(namespace)}/"


def cursors_between(namespace: str, low: int, high: int) -> tuple[str, str]:
    """[start, end) of the cursors of the same topics."""
    return _between(cursors_of_namespace(namespace), low, high)


def topic_policies(topic: str) -> str:
    """topic: its full name, without a partition."""
    return TOPIC_POLICIES + _topic(topic)


def topic_of(key: str) -> str:
    """The topic's full name, of a managed ledger's, its pages', a cursor's, or a topic policies' key."""
    return unquote(key.split("/")[5])


def cursor_of(key: str) -> str:
    """The cursor's name, of a cursor's key."""
    return unquote(key.split("/")[6])


def _namespace(namespace: str) -> str:
    tenant, _, local = namespace.partition("/")
    return f"{_quoted(tenant)}/{_quoted(local)}"


def _topic(topic: str) -> str:
    return f"{_namespace(TopicName.parse(topic).namespace)}/{topic_hash(topic):08x}/{_quoted(topic)}"


def _between(prefix: str, low: int, high: int) -> tuple[str, str]:
    return f"{prefix}{low:08x}", prefix_end(prefix) if high >> 32 else f"{prefix}{high:08x}"
