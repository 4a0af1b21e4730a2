"""SchemaCounts: how long the schema registry's operations took, how many failed, and what was compatible.

Is: counts of one broker since its start, and their samples in Pulsar's names. Isn't: counts by topic.
Invariants: an operation is timed once, whether it fails or not; a schema that is refused is an answer, not a failure of
the registry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from heliograph.model.errors import HeliographError
from heliograph.runtime.clock import Clock
from heliograph.runtime.recent_latencies import Recent
from region_node.runtime.prometheus_text import Sample, summary
from region_node.schemas.compatibility import IncompatibleSchema
from region_node.schemas.schema_definition import InvalidSchema

OPERATIONS = ("get", "put", "del")


class SchemaCounts:
    def __init__(self, clock: Clock) -> None:
        self.compatible = self.incompatible = 0
        self.failed = dict.fromkeys(OPERATIONS, 0)
        self.took_ms = {operation: Recent() for operation in OPERATIONS}
        self._clock = clock

    @contextmanager
    def one(self, operation: str) -> Iterator[None]:
        """Times what is done inside as one of OPERATIONS. A HeliographError counts as a failure, unless it is a refusal
        of the schema.
        """
        began = self._clock.monotonic()
        try:
            yield
        except (IncompatibleSchema, InvalidSchema):
            raise
        except HeliographError:
            self.failed[operation] += 1
            raise
        finally:
            self.took_ms[operation].add((self._clock.monotonic() - began) * 1000)

    @contextmanager
    def check(self) -> Iterator[None]:
        """Around the question whether a schema may follow those that are there."""
        try:
            yield
        except IncompatibleSchema:
            self.incompatible += 1
            raise
        self.compatible += 1

    def samples(self, region: str) -> Iterator[Sample]:
        labels = {"cluster": region}
        yield "pulsar_schema_compatible_total", "counter", labels, self.compatible
        yield "pulsar_schema_incompatible_total", "counter", labels, self.incompatible
        for operation in OPERATIONS:
            yield f"pulsar_schema_{operation}_ops_failed_total", "counter", labels, self.failed[operation]
            yield from summary(f"pulsar_schema_{operation}_ops_latency", labels, self.took_ms[operation])
