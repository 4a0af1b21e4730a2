"""Settings: what is read, what overrides it, and the sentence for each mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from heliograph.model.errors import ConfigError
from region_node.process.settings import BookieRoleSettings, ProcessSettings, host_and_port, load

BROKER: dict[str, Any] = {
    "format": 1,
    "region": "us",
    "node_id": "us-broker-0",
    "data_dir": "/nowhere",
    "roles": ["broker"],
    "bind": "127.0.0.1",
    "meta": ["127.0.0.1:7001"],
    "config": ["127.0.0.1:7002"],
    "tls": None,
    "broker": {
        "port": 6650,
        "admin_port": 0,
        "link_port": 6700,
        "shared_port": 6649,
        "shared_admin_port": 8079,
        "listeners": {"link-eu": "pulsar+ssl://127.0.0.1:30001"},
        "advertised_host": "127.0.0.1",
        "drain_timeout_s": 5,
    },
}


def loaded(
    tmp_path: Path, fields: dict[str, Any], environment: dict[str, str] | None = None, roles: tuple[str, ...] = ()
) -> ProcessSettings:
    path = tmp_path / "settings.json"
    path.write_text(json.dumps(fields))
    return load(str(path), environment or {}, roles=roles)


def test_a_file_as_the_supervisor_writes_it(tmp_path: Path) -> None:
    settings = loaded(tmp_path, BROKER)
    assert settings.roles == ("broker",) and settings.meta == ("127.0.0.1:7001",)
    assert (
        settings.broker.listeners == {"link-eu": "pulsar+ssl://127.0.0.1:30001"}
        and settings.broker.drain_timeout_s == 5.0
    )
    assert settings.tls is None and settings.bookie.port == 3181 and settings.broker.ownership.lease_ttl_ms == 3000


def test_the_entry_cache_is_set_by_our_names_or_by_pulsars(tmp_path: Path) -> None:
    pulsar = {
        "managedLedgerCacheSizeMB": 128,
        "managedLedgerCursorBackloggedThreshold": 1000,
        "managedLedgerCacheEvictionTimeThresholdMillis": 1500,
        "cacheEvictionByMarkDeletedPosition": False,
    }
    found = loaded(tmp_path, {**BROKER, "broker": {**BROKER["broker"], **pulsar}}).broker
    cache = found.entry_cache()
    assert (found.cache_mb, cache.backlogged_entries, cache.time_ms, cache.eviction) == (128, 1000, 1500, "read")
    assert (
        loaded(
            tmp_path, BROKER, {"HELIOGRAPH_BROKER__CACHEEVICTIONBYMARKDELETEDPOSITION": "true"}
        ).broker.cache_eviction
        == "mark_delete"
    )
    for wrong, sentence in (
        ({"managedLedgerCacheSizeMB": 1, "cache_mb": 1}, "say the same thing"),
        ({"cacheEvictionByMarkDeletedPosition": "yes"}, "expected true or false"),
        ({"cache_eviction": "lru"}, "must be one of read, mark_delete, time, not 'lru'"),
        ({"cache_time_ms": 0}, "cache_time_ms must be 1 or more, not 0"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            loaded(tmp_path, {**BROKER, "broker": {**BROKER["broker"], **wrong}})


def test_the_environment_overrides_single_fields_and_leaves_foreign_variables_alone(tmp_path: Path) -> None:
    environment = {
        "HELIOGRAPH_REGION": "eu",
        "HELIOGRAPH_BROKER__PORT": "7777",
        "HELIOGRAPH_BROKER__OWNERSHIP__LEASE_TTL_MS": "1000",
        "HELIOGRAPH_META": '["127.0.0.1:9"]',
        "HELIOGRAPH_COLOUR": "blue",
        "PATH": "/bin",
    }
    settings = loaded(tmp_path, BROKER, environment)
    assert (settings.region, settings.broker.port, settings.broker.ownership.lease_ttl_ms, settings.meta) == (
        "eu",
        7777,
        1000,
        ("127.0.0.1:9",),
    )


def test_roles_of_the_command_line_replace_those_of_the_file(tmp_path: Path) -> None:
    assert loaded(tmp_path, BROKER, roles=("meta", "config")).roles == ("meta", "config")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": 2}, "the settings are of format 2; this version reads format 1"),
        ({"region": "a/b"}, "letters, digits"),
        ({"roles": ["brooker"]}, "'brooker' is none of meta, config, bookie, broker"),
        ({"roles": []}, "no role is set"),
        ({"roles": ["bookie"], "data_dir": ""}, "data_dir is not set"),
        ({"meta": []}, "meta is not set"),
        ({"config": []}, "config is not set"),
        ({"meta": ["localhost"]}, "meta: expected host:port, not 'localhost'"),
        ({"meta": "127.0.0.1:1"}, 'meta: expected a list, not "127.0.0.1:1"'),
        ({"colour": 1}, "there is no setting 'colour'"),
        ({"broker": {"port": 70000}}, "broker.port must be -1 (none) to 65535, not 70000"),
        ({"broker": {"port": "6650"}}, 'broker.port: expected a whole number, not "6650"'),
        ({"broker": {"port": True}}, "broker.port: expected a whole number, not true"),
        ({"broker": {"ports": 1}}, "broker: there is no setting 'ports'"),
        ({"broker": {"listeners": {"link-eu": "127.0.0.1:1"}}}, "broker.listeners.link-eu: expected pulsar://"),
        ({"broker": {"ownership": {"lease_ttl_ms": 1}}}, "lease_ttl_ms must be 100 to 60000, not 1"),
        ({"tls": {"ca": "/no/such/ca.pem"}}, "tls.ca: the file /no/such/ca.pem does not exist"),
        ({"roles": ["bookie"], "bind": "0.0.0.0"}, "bind is 0.0.0.0: bookies and metadata nodes"),
        (
            {"bind": "0.0.0.0", "security": {"allow_insecure": True}},
            "bind is 0.0.0.0: links from other machines need certificates",
        ),
        (
            {"bind": "0.0.0.0", "broker": {"link_port": 0}},
            "bind is 0.0.0.0, and whoever reaches the broker there may do",
        ),
        ({"bind": "::", "broker": {"link_port": 0}}, "security.allow_insecure to true"),
        ({"bind": "broker.example", "broker": {"link_port": 0}}, "set security.authentication"),
    ],
)
def test_each_mistake_is_one_sentence(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ConfigError) as caught:
        loaded(tmp_path, {**BROKER, **change})
    assert sentence in str(caught.value) and "\n" not in str(caught.value)
    if set(change) <= {"colour", "broker", "tls"} and "bind" not in change:
        assert "(docs/reference/settings.md has each setting)" in str(caught.value)


def test_what_no_operator_sets_is_no_setting_of_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"bookie\.storage: there is no setting 'frame_bytes_max'"):
        loaded(tmp_path, {**BROKER, "bookie": {"storage": {"frame_bytes_max": 1 << 20}}})


def test_a_bookies_journal_cache_and_compaction_are_an_operators(tmp_path: Path) -> None:
    given = {
        "segment_bytes": 64 << 20,
        "spare_segments": 4,
        "write_cache_bytes": 256 << 20,
        "journal_pending_bytes": 32 << 20,
        "major_interval_s": 600,
        "major_live_max": 0.8,
        "compaction_bytes_per_s": 1 << 20,
        "compacted_log_bytes": 1 << 30,
        "scrub_interval_s": 86400,
        "scrub_bytes_per_s": 1 << 20,
    }
    fields = {**BROKER, "bookie": {"storage": given, "free_mb_min": 1, "free_mb_again": 2, "index_mb_max": 3}}
    made = loaded(tmp_path, fields, {"HELIOGRAPH_BOOKIE__STORAGE__READS_MAX": "7"}).bookie.of_storage()
    assert {name: getattr(made, name) for name in given} == given
    assert (made.free_bytes_min, made.free_bytes_again, made.index_bytes_max) == (1 << 20, 2 << 20, 3 << 20)
    assert made.reads_max == 7 and made.open_logs_max == 512
    for wrong, sentence in (
        ({"segment_bytes": 1 << 20}, "bookie.storage.segment_bytes must be a multiple of 4096, and"),
        ({"segment_bytes": 2 << 30}, "bookie.storage.segment_bytes must be at most 1073741824"),
        ({"scrub_bytes_per_s": 0}, "bookie.storage.scrub_bytes_per_s must be 100 or more"),
        ({"minor_live_max": 0.6}, "minor_live_max 0.6 must not be above major_live_max 0.5"),
    ):
        with pytest.raises(ConfigError, match=sentence):
            loaded(tmp_path, {**BROKER, "bookie": {"storage": wrong}})


def test_where_a_bookies_directories_are() -> None:
    for own, journals, ledgers in (
        (BookieRoleSettings(), ("/d/journal",), ("/d/ledgers",)),
        (BookieRoleSettings(journal_dir="/j"), ("/j",), ("/d/ledgers",)),
        (BookieRoleSettings(journal_dirs=("/a", "/b"), ledger_dirs=("/x", "/y")), ("/a", "/b"), ("/x", "/y")),
    ):
        assert own.directories("/d") == (journals, ledgers)
    with pytest.raises(ConfigError, match="both set"):
        BookieRoleSettings(journal_dir="/j", journal_dirs=("/a",))


def test_a_missing_field_and_a_missing_or_broken_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="region is not set"):
        loaded(tmp_path, {"node_id": "x"})
    with pytest.raises(ConfigError, match="cannot be read"):
        load(str(tmp_path / "none.json"), {})
    (tmp_path / "broken.json").write_text("{")
    with pytest.raises(ConfigError, match="is no JSON"):
        load(str(tmp_path / "broken.json"), {})


def test_an_address_is_a_host_and_a_port() -> None:
    for text, found in (("h:1", ("h", 1)), ("h:65535", ("h", 65535)), ("[::1]:80", ("::1", 80)), ("a.b:8", ("a.b", 8))):
        assert host_and_port("bind", text) == found
    for text in ("", "h", ":80", "h:", "h:0", "h:65536", "h:-1", "h:8o", "h:²", "80"):
        with pytest.raises(ConfigError, match=r"bind: expected host:port"):
            host_and_port("bind", text)
