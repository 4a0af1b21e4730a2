"""The official client's names for where a subscription begins, and how it is shared."""

from __future__ import annotations

import pulsar

EARLIEST, SHARED, KEYED = pulsar.InitialPosition.Earliest, pulsar.ConsumerType.Shared, pulsar.ConsumerType.KeyShared
