"""Settings of tiered storage: where objects go, and how much is moved at a time.

Is: what a broker is set to. Isn't: a policy of a namespace or a topic (`storage.tiered.offload.offload_plan`), or
credentials' meaning (`storage.tiered.objects.builtin_stores`).
"""

from __future__ import annotations

from dataclasses import dataclass

from heliograph.model.configuration.setting import check_bounds, setting
from heliograph.model.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class TieredSettings:
    store: str = setting("", theirs="managedLedgerOffloadDriver (a name)")
    """URL: `s3://bucket/prefix`, `cos://`, `oss://`, `gs://`, `az://container/prefix`, `file:///folder`. Empty: nothing
    is offloaded, and no object is read. All brokers of a region have the same. What lies in a folder is for the
    brokers' user alone.
    """
    options: dict[str, str] = setting({})
    """The store's options: `endpoint`, `region`, `access_key_id`, `secret_access_key`, `account_name`, ...; of `gs`:
    `service_account` (a file), `service_account_key` (its text), or `bearer_token`, and `endpoint` where it is not
    Google's; what is not set comes from the environment, as its vendor's tools read it. `cos` and `oss` need `region`.
    """
    tick_s: float = setting(10.0, "s", above=0)
    """How often the offload policies of topics are looked at; of more than 5,000 open ones, those of 5,000 each time.
    """
    sweep_topics: int = setting(2000, "topics", least=0)
    """How many topics of the metadata are looked at in each tick, for those that nobody has loaded; 0: only loaded
    topics are offloaded.
    """
    collect_s: float = setting(3600.0, "s", above=0)
    """How often objects that no topic names are looked for."""
    manifest_s: float = setting(60.0, "s", least=0)
    """How often a topic that has objects may store its cursors anew."""
    bytes_per_s: int = setting(64 << 20, "B/s", least=1)
    """What one broker uploads at most."""
    uploads_max: int = setting(2, "topics", least=1, theirs="managedLedgerOffloadMaxThreads")
    """Topics that one broker offloads at the same time."""
    index_bytes: int = setting(256 << 10, "bytes", least=1)
    """One row of an object's index for each so many bytes of blocks: also the smallest range that is read; not above
    `read_bytes`.
    """
    read_bytes: int = setting(4 << 20, "bytes", least=1, theirs="s3ManagedLedgerOffloadReadBufferSizeInBytes")
    """What is read of an object at a time; the next two such ranges are fetched while this one is being read, or one
    where many objects are read. Not above `cache_bytes`.
    """
    cache_bytes: int = setting(64 << 20, "bytes", least=1)
    """What a broker keeps of the ranges that it read."""
    indexes_max: int = setting(256, "indexes", least=1)
    """Indexes of objects that a broker keeps."""
    timeout_s: float = setting(30.0, "s", above=0)
    """How long one request to the store may take, with the client's own retries."""

    def __post_init__(self) -> None:
        if self.store and "://" not in self.store:
            raise ConfigError(
                f"broker.tiered.store: expected a URL such as s3://bucket/prefix or file:///folder, not {self.store!r}"
            )
        check_bounds(self, "broker.tiered")
        if not self.index_bytes <= self.read_bytes <= self.cache_bytes:
            raise ConfigError(
                f"broker.tiered: want index_bytes {self.index_bytes} <= read_bytes {self.read_bytes} <= cache_bytes "
                f"{self.cache_bytes}"
            )
