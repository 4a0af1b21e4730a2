"""BrokerTier: tiered storage as one broker has it.

Is: what connects `storage.tiered` with policies, topics, and the global configuration: a topic's policy as a value,
what a manifest says of it, and a restore with its tenant, namespace, and policies. Isn't: a step of an offload or of a
restore.
Invariants: a restore makes what is missing and changes nothing that is there; a restored topic publishes under an
origin of its own, so that no coordinate is given twice, whatever the lost region had published behind the end of what
is restored.
Source: docs/protocols/tiered.md.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from heliograph.model.configuration.configuration_records import (
    NamespacePolicies,
    RegionInfo,
    TenantInfo,
    TopicPolicies,
)
from heliograph.model.errors import AlreadyExists, CorruptData, NotFound, StoreRefused
from heliograph.model.feature_levels import COMPACTED_OBJECTS, LEDGER_PAGES, LEVEL
from heliograph.model.ledger_metadata import LedgerInfo
from heliograph.model.positions import Position
from heliograph.model.topic_names import TopicName
from heliograph.runtime.clock import CautiousClock, Rng
from heliograph.runtime.disk import Disk
from heliograph.wire.run import Run
from region_node.runtime.prometheus_text import Sample
from region_node.tiering.compacted_offload import CompactionOffload
from region_node.tiering.offload_metrics import TierMetrics
from replicator.dedup.producer_dedup import DedupSettings
from replicator.log.topic_state import TopicState
from storage.ledger.sealed_copies import opened
from storage.managed_ledger.log.shadow_ledger import ShadowLedger
from storage.tiered.objects.builtin_stores import maker
from storage.tiered.offload.offload_plan import OffloadPolicy, stored
from storage.tiered.offload.offloader import Described, Tiering
from storage.tiered.offload.topic_manifest import TopicManifest
from storage.tiered.reading.cold_reader import ColdReader
from storage.tiered.reading.topic_restore import Restored, manifests, restore_topic
from storage.tiered.store import Stores
from storage.tiered.tiered_settings import TieredSettings

if TYPE_CHECKING:
    from global_config.admin import ConfigAdmin
    from global_config.view import ConfigView
    from region_node.placement.ownership.ownership_service import Ownership
    from region_node.runtime.topic_ports import OwnRegion
    from region_node.topics.serving.topic_service import TopicService
    from storage.managed_ledger.log.managed_ledger import ManagedLedger
    from storage.managed_ledger.log.managed_ledger_factory import ManagedLedgerFactory

_LINK_CURSORS = "pulsar.repl."
_TENANT, _NAMESPACE, _TOPIC, _TOPIC_EVERYWHERE, _SCHEMAS = "tenant", "namespace", "topic", "topic-everywhere", "schemas"
_SCHEMA_BYTES_MAX = 8 << 20
"""Each manifest of a topic has at most so many bytes of its schemas, the newest ones."""
_FIELDS = {
    "managedLedgerOffloadThresholdInBytes": "threshold_bytes",
    "managedLedgerOffloadThresholdInSeconds": "threshold_s",
    "managedLedgerOffloadDeletionLagInMillis": "deletion_lag_ms",
}
"""A field of Pulsar's OffloadPolicies -> ours; the others say where things go, which is the broker's own setting."""


def policy_of(values: dict[str, Any]) -> OffloadPolicy:
    """From Pulsar's OffloadPolicies; what is not set, or is no number, is as by default."""
    given = {ours: values[theirs] for theirs, ours in _FIELDS.items() if type(values.get(theirs)) in (int, float)}
    return OffloadPolicy(**{name: max(int(value), -1) for name, value in given.items()})


def _is_no_link(cursor: str) -> bool:
    """Links make their cursors anew, and begin where the other region says."""
    return not cursor.startswith(_LINK_CURSORS)


class RestoredTopic:
    """A `RestoredState` over the state of replicated logs."""

    def __init__(self, region: RegionInfo, rng: Rng) -> None:
        self._region, self._rng = region, rng
        self._state = self._fresh()

    def _fresh(self) -> TopicState:
        return TopicState(
            region=self._region.number,
            epoch=self._region.epoch,
            rng=self._rng,
            deduplication=True,
            settings=DedupSettings(),
        )

    def begin(self, blob: bytes, *, whole: bool) -> None:
        known = self._fresh()
        known.restore(blob)
        if not whole:
            anew = self._fresh()
            anew.origin, anew.past = known.origin, known.past
            for origin, end in known.past:
                anew.vector.advance(origin, end)
            known = anew
        self._state = known

    def replay(self, ledger: int, first: int, run: Run) -> None:
        self._state.replay(ledger, first, run)

    def end(self, last: Position) -> bytes:
        state = self._state
        if state.origin[0] == self._region.number:
            state.past.append((state.origin, last))
        else:
            # another region's: links from here may send nothing under its number, so its entries count as first
            # published here
            state.past, state.delivered = [], {}
        state.origin = (self._region.number, self._region.epoch, 1 + self._rng.getrandbits(62))
        if not state.past:
            state.vector.advance(state.origin, last)
        return state.snapshot()


class BrokerTier:
    """One a broker; `tiering.start` and `stop` are the composition's to call."""

    def __init__(
        self,
        *,
        region: OwnRegion,
        factory: ManagedLedgerFactory,
        view: ConfigView,
        config: ConfigAdmin,
        topics: TopicService,
        collects: Callable[[], bool],
        disk: Callable[[str], Disk],
        clock: CautiousClock,
        rng: Rng,
        settings: TieredSettings,
        ownership: Ownership,
        level: Callable[[], int] = lambda: LEVEL,
    ) -> None:
        """collects: whether this broker is the one that looks for objects that nobody names, and after topics that no
        broker owns.
        """
        self._ownership, self._collects, self._level = ownership, collects, level
        self._schema_changes: dict[
            str, int
        ] = {}  # topic, without its partition -> versions that came by way of this broker
        self._region, self._view, self._config, self._topics, self._rng = region, view, config, topics, rng
        self._meta = factory.context.meta
        self._opened: Callable[[], list[ManagedLedger]] = lambda: [
            one for one in factory.opened if not isinstance(one, ShadowLedger)
        ]
        self.stores = Stores(settings.store, settings.options, settings.timeout_s, maker(disk))
        self.reader = ColdReader(self.stores, settings, factory.context.tasks, partial(opened, factory.context))
        factory.cold = self.reader
        self.compacted = CompactionOffload(
            lambda: topics.compactor,
            topics.loaded.get,
            self._meta,
            self.stores,
            lambda: self.tiering.holder,
            lambda: level() >= COMPACTED_OBJECTS,
            lambda topic: self.tiering.collector.count(topic) if self.tiering.collector is not None else None,
        )
        self.tiering = Tiering(
            region=region.name,
            context=factory.context,
            stores=self.stores,
            opened=self._opened,
            policy=self.policy,
            describe=self.describe,
            collects=collects,
            clock=clock,
            settings=settings,
            lender=self,
            schemas=self.schemas,
            beside=self.compacted,
        )
        self._topic_metrics = TierMetrics(self.tiering, self.reader, clock)
        topics.schemas.on_new(self._on_schema)
        if topics.compactor is not None:
            topics.compactor.delete_objects_by(self.compacted.delete)

    # -- topics that nobody has loaded (a TopicLoader) -----------------------------------------------------------------

    def lends(self, topic: str) -> bool:
        ownership, name = self._ownership, TopicName.parse(topic)
        table = ownership.bundles(name.namespace)
        if table is None or topic in self._topics.loaded:
            return False
        if ownership.owns(topic):
            return True
        return self._collects() and ownership.present_owner(name.namespace, table.of(topic)) is None

    async def load(self, topic: str) -> bool:
        """Where no broker owns its bundle, one is found first, as for a client; that one loads it then."""
        ownership = self._ownership
        if not ownership.owns(topic):
            await ownership.owner(topic)
        if not ownership.owns(topic):
            return False
        await self._topics.get(topic, create=False)
        return True

    async def give_back(self, topic: str) -> None:
        found = self._topics.loaded.get(topic)
        if (
            found is not None
            and not found.producers.producers
            and not any(one.consumers for one in found.subscriptions.values())
        ):
            await self._topics.unload(topic)

    # -- a topic's policies -------------------------------------------------------------------------------------------

    def policy(self, topic: str) -> OffloadPolicy:
        values = self._topics.policies.of(TopicName.parse(topic)).values.get("offloadPolicies")
        return policy_of(values) if isinstance(values, dict) else OffloadPolicy()

    def describe(self, topic: str) -> Described:
        name = TopicName.parse(topic)
        base = str(name.partitioned)
        found = {
            _TENANT: self._view.tenant(name.tenant),
            _NAMESPACE: self._view.namespace(name.namespace),
            _TOPIC: self._topics.policies.topic(base),
            _TOPIC_EVERYWHERE: self._view.topic_policies(base),
        }
        policies = {
            what: value.encode().decode()
            for what, value in found.items()
            if value is not None and value != TopicPolicies()
        }
        changed = self._schema_changes.get(base, 0)
        return Described(policies, self._view.partitions(base) if name.partition >= 0 else 0, changed)

    async def schemas(self, topic: str) -> dict[str, str]:
        """[[number, base64 of the stored value], ...]: messages name the numbers."""
        rows = await self._topics.schemas.dump(TopicName.parse(topic), _SCHEMA_BYTES_MAX)
        return {_SCHEMAS: json.dumps([[number, b64encode(value).decode()] for number, value in rows])} if rows else {}

    def _on_schema(self, topic: TopicName) -> None:
        base = str(topic.partitioned)
        self._schema_changes[base] = self._schema_changes.get(base, 0) + 1

    # -- restore ------------------------------------------------------------------------------------------------------

    async def restore(self, topic: TopicName, *, url: str = "", holder: str = "") -> list[Restored]:
        """The topic, or each partition of it that the store has and this region has not. Raises what `restore_topic`
        raises.
        """
        if not (url or self.stores.own_url):
            raise StoreRefused(
                "this broker is set to no object store: name one with --store, or set broker.tiered.store"
            )
        wanted = await self._names(topic, url, holder)
        restored: list[Restored] = []
        for name in wanted:
            state = RestoredTopic(self._region.info(), self._rng)
            try:
                restored.append(
                    await restore_topic(
                        self._meta,
                        self.stores,
                        self.reader,
                        str(name),
                        state,
                        self._prepare,
                        url=url,
                        holder=holder,
                        keep_cursor=_is_no_link,
                        adapt=partial(self.compacted.adapt, str(name), "" if url == self.stores.own_url else url),
                        may_page=self._level() >= LEDGER_PAGES,
                    )
                )
            except AlreadyExists:
                if len(wanted) == 1:
                    raise
                continue  # a partition that an earlier attempt has brought back
        if not restored:
            raise AlreadyExists(
                f"every partition of {topic} exists in this region: delete the topic first, if it is to be replaced"
            )
        return restored

    async def _names(self, topic: TopicName, url: str, holder: str) -> list[TopicName]:
        """The topic itself, or its partitions."""
        store = self.stores.get("" if url == self.stores.own_url else url)
        held = [TopicName.parse(found) for _, found in await manifests(store, f"{holder}/" if holder else "")]
        if topic in held:
            return [topic]
        partitions = {name.partition: name for name in held if name.partition >= 0 and name.partitioned == topic}
        if not partitions:
            raise NotFound(f"{store.url} holds no manifest of {topic}: `heliograph tier list` shows what it holds")
        return [partitions[index] for index in sorted(partitions)]

    async def _prepare(self, one: TopicManifest) -> list[str]:
        """Tenant, namespace, policies, and the number of partitions, where they are missing; notes of what was left as
        it is.
        """
        name, own, notes = TopicName.parse(one.topic), self._region.info().name, []
        if self._view.tenant(name.tenant) is None:
            text = one.policies.get(_TENANT)
            tenant = TenantInfo.decode(text.encode()) if text else TenantInfo()
            regions = tuple(
                dict.fromkeys([own, *(r for r in tenant.allowed_regions if self._view.region(r) is not None)])
            )
            await self._tolerant(self._config.create_tenant(name.tenant, replace(tenant, allowed_regions=regions)))
        if self._view.namespace(name.namespace) is None:
            text = one.policies.get(_NAMESPACE)
            policies = NamespacePolicies.decode(text.encode()) if text else NamespacePolicies()
            await self._tolerant(
                self._config.create_namespace(name.namespace, replace(policies, regions=(own,), allowed_regions=()))
            )
            gone = [region for region in policies.regions if region != own]
            if gone:
                notes.append(
                    f"namespace {name.namespace} was made for {own} alone; it was replicated with {', '.join(gone)}: "
                    "set its clusters again"
                )
        elif _NAMESPACE in one.policies:
            notes.append(f"namespace {name.namespace} was there, and keeps its policies")
        base = str(name.partitioned)
        book = self._topics.policies
        for level in (_TOPIC_EVERYWHERE, _TOPIC):
            if level in one.policies and book.topic(base) == TopicPolicies():
                found = TopicPolicies.decode(one.policies[level].encode())
                await book.change_topic(
                    base,
                    lambda old, found=found: TopicPolicies(  # type: ignore[misc]
                        policies={**old.policies, **found.policies}, properties=found.properties
                    ),
                )
        if _SCHEMAS in one.policies:
            try:
                rows = [(int(number), b64decode(value)) for number, value in json.loads(one.policies[_SCHEMAS])]
                await self._topics.schemas.restore(name, rows)
            except (ValueError, TypeError, CorruptData) as error:
                notes.append(f"the schemas in the manifest cannot be read ({error}): producers must bring them again")
        if one.partitions and name.partition >= 0 and not self._view.partitions(base):
            await self._tolerant(self._config.create_partitioned(base, one.partitions))
        return notes

    @staticmethod
    async def _tolerant(making: Any) -> None:
        try:
            await making
        except AlreadyExists:
            pass  # the view had not shown it yet

    # -- what is shown ------------------------------------------------------------------------------------------------

    def samples(self, region: str) -> Iterable[Sample]:
        """Nothing, where the broker is set to no store and has read from none."""
        if not self.stores.own_url and not self.reader.reads:
            return
        tiering, reader, labels = self.tiering, self.reader, {"cluster": region}
        collected = tiering.collector.collected if tiering.collector is not None else 0
        counters = (
            ("offloaded_ledgers", tiering.offloaded_ledgers),
            ("offloaded_bytes", tiering.offloaded_bytes),
            ("local_copies_deleted", tiering.dropped_ledgers),
            ("objects_collected", collected),
            ("read_ranges", reader.reads),
            ("read_bytes", reader.read_bytes),
            ("read_hits", reader.hits),
            ("read_errors", reader.errors),
        )
        for name, value in counters:
            yield f"heliograph_tier_{name}_total", "counter", labels, value
        went_back = tiering.collector is not None and bool(tiering.collector.went_back)
        yield "heliograph_tier_metadata_went_back", "gauge", labels, int(went_back)
        for topic, failures in tiering.failures().items():
            yield (
                "heliograph_tier_failing",
                "gauge",
                {**labels, "namespace": TopicName.parse(topic).namespace, "topic": topic},
                failures,
            )
        yield from self._topic_metrics.samples(region)
        for ledger in self._opened():
            size = ledger.stored_bytes
            if size:
                own = {**labels, "namespace": TopicName.parse(ledger.topic).namespace, "topic": ledger.topic}
                yield "pulsar_storage_offloaded_size", "gauge", own, size

    @staticmethod
    def first_unstored(ledgers: list[LedgerInfo]) -> Position | None:
        """The first message that only bookies have; None where there is none."""
        for info in ledgers:
            if not stored(info) and info.entries:
                return info.ledger, 0
        return None
