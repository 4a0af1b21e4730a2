"""Names of topics, namespaces, and their parts, and the hash that places a topic in a bundle.

Is: parsing, validation, and the partition suffix. Isn't: a look-up whether anything exists.
Source: docs/protocols/pulsar.md, "Names".
"""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from sys import intern

from heliograph.model.errors import NotAllowed

_PART = re.compile(r"(?!\.\.?\Z)[-=:.\w]+\Z")
"""Neither `.` nor `..`: a name stands in paths, where these lead elsewhere."""
_WRONG = "may hold only letters, digits, and -=:._, and is neither . nor .."
_CONTROL = re.compile(r"[\x00-\x1f]")
_PARTITION = "-partition-"
NAME_MAX = 4096
"""Characters of a topic's full name."""
_SHOWN = 200
"""Characters of a wrong name that an error repeats."""


@dataclass(frozen=True, slots=True)
class TopicName:
    """One topic: `{domain}://{tenant}/{namespace}/{local}`; a partition is a topic of its own."""

    domain: str
    tenant: str
    namespace_local: str
    local: str

    @classmethod
    def parse(cls, text: str) -> TopicName:
        """Takes full and short names (`x` is `persistent://public/default/x`). Raises NotAllowed with the reason."""
        if len(text) > NAME_MAX:
            raise NotAllowed(f"topic {text[:_SHOWN]!r}...: more than {NAME_MAX} characters in the name")
        domain, separator, rest = text.partition("://")
        if not separator:
            domain, rest = "persistent", text
            if "/" not in rest:
                rest = f"public/default/{rest}"
            if len(rest) + len("persistent://") > NAME_MAX:
                raise NotAllowed(f"topic {text[:_SHOWN]!r}...: more than {NAME_MAX} characters in the full name")
        if domain not in ("persistent", "non-persistent"):
            raise NotAllowed(f"topic {text!r}: the domain must be persistent or non-persistent, not {domain!r}")
        parts = rest.split("/", 2)
        if len(parts) != 3 or not parts[2]:
            raise NotAllowed(f"topic {text!r}: expected domain://tenant/namespace/topic")
        tenant, namespace, local = intern(parts[0]), intern(parts[1]), parts[2]  # of very many topics they are the same
        for part in (tenant, namespace):
            if not _PART.match(part):
                raise NotAllowed(f"topic {text!r}: {part!r} {_WRONG}")
        if local[0] == "." or "/." in local:
            for part in local.split("/"):
                if part in (".", ".."):
                    raise NotAllowed(f"topic {text!r}: {part!r} is no name, nor a part of one")
        if _CONTROL.search(local):
            raise NotAllowed(f"topic {text!r}: control characters in the name")
        return cls(intern(domain), tenant, namespace, local)

    @property
    def namespace(self) -> str:
        """The whole name, `tenant/namespace`, unlike `namespace_local`."""
        return f"{self.tenant}/{self.namespace_local}"

    @property
    def persistent(self) -> bool:
        return self.domain == "persistent"

    @property
    def partition(self) -> int:
        """Index of the partition, or -1."""
        _, separator, number = self.local.rpartition(_PARTITION)
        return int(number) if separator and len(number) <= 10 and number.isascii() and number.isdigit() else -1

    @property
    def partitioned(self) -> TopicName:
        """The partitioned topic that this partition belongs to; itself where it is none."""
        if self.partition < 0:
            return self
        return TopicName(self.domain, self.tenant, self.namespace_local, self.local.rpartition(_PARTITION)[0])

    def with_partition(self, index: int) -> TopicName:
        return TopicName(self.domain, self.tenant, self.namespace_local, f"{self.local}{_PARTITION}{index}")

    def __str__(self) -> str:
        return f"{self.domain}://{self.tenant}/{self.namespace_local}/{self.local}"


def check_name(kind: str, text: str) -> str:
    """Returns `text` where it may name a tenant, namespace, region, or subscription part. Raises NotAllowed."""
    if not _PART.match(text):
        raise NotAllowed(f"{kind} name {text[:_SHOWN]!r} {_WRONG}")
    return text


def topic_hash(topic: str) -> int:
    """0 to 2**32 - 1: where a topic's full name falls among the bundles of its namespace."""
    return zlib.crc32(topic.encode())


def bundle_of(topic: str, bundles: int) -> int:
    """Index of the bundle, of `bundles` equal hash ranges."""
    return topic_hash(topic) * bundles >> 32


def bundle_range(index: int, bundles: int) -> str:
    """`0x00000000_0x40000000`, as Pulsar writes a bundle; the last one ends with 0xffffffff."""
    width = (1 << 32) // bundles
    high = 0xFFFFFFFF if index == bundles - 1 else width * (index + 1)
    return f"0x{width * index:08x}_0x{high:08x}"
