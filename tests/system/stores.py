"""Servers that jobs write into, of Debian's packages, each with a folder and a port of its own, until the block
ends.
"""

from __future__ import annotations

import http.client
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.servers import free_port
from geo_tests.wan.instance import eventually
from tests.system.programs import clickhouse_server, libraries, redis_server
from tests.system.started import Started

CLICKHOUSE = """<?xml version="1.0"?>
<yandex>
  <logger><level>warning</level><console>1</console></logger>
  <listen_host>127.0.0.1</listen_host> <http_port>{http}</http_port> <tcp_port>{tcp}</tcp_port> <interserver_http_port>{other}</interserver_http_port>
  <path>{folder}/data/</path> <tmp_path>{folder}/tmp/</tmp_path> <user_files_path>{folder}/files/</user_files_path>
  <users_config>{folder}/users.xml</users_config> <default_profile>default</default_profile> <default_database>default</default_database>
  <mark_cache_size>67108864</mark_cache_size> <timezone>UTC</timezone>
</yandex>
"""  # noqa: E501
USERS = """<?xml version="1.0"?>
<yandex>
  <profiles><default/></profiles> <quotas><default/></quotas>
  <users><writer><password>se:cret</password><networks><ip>127.0.0.1</ip></networks><profile>default</profile><quota>default</quota></writer></users>
</yandex>
"""


@contextmanager
def redis_running(folder: Path) -> Iterator[str]:
    """Its URL."""
    import redis

    port, program = free_port(), redis_server()
    command = [
        str(program),
        "--port",
        str(port),
        "--bind",
        "127.0.0.1",
        "--dir",
        str(folder),
        "--appendonly",
        "yes",
        "--daemonize",
        "no",
    ]
    process = Started(command, {**os.environ, "LD_LIBRARY_PATH": libraries(program)}, folder / "log")
    try:
        client = redis.Redis(port=port)

        def answers() -> bool:
            try:
                return bool(client.ping())
            except redis.ConnectionError:
                return False

        eventually(answers, f"Redis answers; see {folder / 'log'}", 240)
        client.close()
        yield f"redis://127.0.0.1:{port}/0"
    finally:
        process.stop()


@contextmanager
def clickhouse_running(folder: Path) -> Iterator[str]:
    """The URL of its HTTP port, with who may write."""
    port, program = free_port(), clickhouse_server()
    (folder / "config.xml").write_text(CLICKHOUSE.format(http=port, tcp=free_port(), other=free_port(), folder=folder))
    (folder / "users.xml").write_text(USERS)
    env = {**os.environ, "LD_LIBRARY_PATH": libraries(program)}
    process = Started([str(program), "--config-file", str(folder / "config.xml")], env, folder / "log")

    def answers() -> bool:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
        try:
            connection.request("GET", "/ping")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()

    try:
        eventually(answers, f"ClickHouse answers; see {folder / 'log'}", 240)
        yield f"http://writer:se%3Acret@127.0.0.1:{port}/?database=default"
    finally:
        process.stop()
