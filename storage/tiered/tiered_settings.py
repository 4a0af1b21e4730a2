"""Settings of tiered storage: where objects go, and how much is moved at a time.

Is: what a broker is set to. Isn't: a policy of a namespace or a topic (`storage.tiered.offload.offload_plan`), or
credentials' meaning (`storage.tiered.objects.builtin_stores`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredSettings:
    store: str = ""
    """URL: s3://bucket/prefix, cos://, oss://, gs://, az://container/prefix, file:///folder. Empty: nothing is
    offloaded, and no object is read.
    """
    options: dict[str, str] = field(default_factory=dict)
    """The store's options: endpoint, region, access_key_id, secret_access_key, ...; what is not set comes from the
    environment, as its vendor's tools read it.
    """
    tick_s: float = 10.0
    """How often the policies of topics are looked at."""
    sweep_topics: int = 2000
    """How many topics of the metadata are looked at in each tick, for those that nobody has loaded; 0: only loaded
    topics are offloaded.
    """
    collect_s: float = 3600.0
    """How often objects that no topic names are looked for."""
    manifest_s: float = 60.0
    """How often a topic that has objects may store its cursors anew."""
    bytes_per_s: int = 64 << 20
    """What one broker uploads at most."""
    uploads_max: int = 2
    """Topics that one broker offloads at the same time."""
    index_bytes: int = 256 << 10
    """One row of an object's index for each so many bytes of blocks: also the smallest range that is read."""
    read_bytes: int = 4 << 20
    """What is read of an object at a time; the next two such ranges are fetched while this one is being read, or one
    where many objects are read.
    """
    cache_bytes: int = 64 << 20
    """What a broker keeps of the ranges that it read."""
    indexes_max: int = 256
    """Indexes of objects that a broker keeps."""
    timeout_s: float = 30.0
    """How long one request to the store may take, with the client's own retries."""

    def __post_init__(self) -> None:
        if self.store and "://" not in self.store:
            raise ConfigError(
                f"tiered.store: expected a URL such as s3://bucket/prefix or file:///folder, not {self.store!r}"
            )
        if min(self.tick_s, self.collect_s, self.timeout_s) <= 0 or self.manifest_s < 0:
            raise ConfigError("tiered: times must be above 0")
        if self.sweep_topics < 0:
            raise ConfigError("tiered.sweep_topics must be at least 0")
        if min(self.bytes_per_s, self.uploads_max, self.index_bytes, self.indexes_max) < 1:
            raise ConfigError("tiered: bytes_per_s, uploads_max, index_bytes, and indexes_max must be at least 1")
        if not self.index_bytes <= self.read_bytes <= self.cache_bytes:
            raise ConfigError(
                f"tiered: want index_bytes {self.index_bytes} <= read_bytes {self.read_bytes} <= cache_bytes "
                f"{self.cache_bytes}"
            )
