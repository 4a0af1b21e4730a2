"""Which requests are answered, and by whom.

Is: one table. Isn't: an answer.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Any

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_codec import BY_NAME, Fields, Request, encode_answer
from heliograph.wire.run import Buffer
from region_node.faces.kafka.administration import admin_requests, metadata_requests
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.groups import group_requests
from region_node.faces.kafka.produce_fetch import fetch, offset_requests, produce
from region_node.faces.kafka.quotas import quota_requests
from region_node.faces.kafka.security import acls, sasl, scram
from region_node.faces.kafka.transactions import producer_ids, transaction_requests

if TYPE_CHECKING:
    from region_node.faces.kafka.connection.kafka_connection import KafkaConnection

Handler = Callable[["KafkaConnection", Request], Coroutine[Any, Any, Fields | None]]

HANDLERS: dict[str, Handler] = {
    "produce": produce.produce,
    "fetch": fetch.fetch,
    "list_offsets": offset_requests.list_offsets,
    "metadata": metadata_requests.metadata,
    "offset_commit": group_requests.offset_commit,
    "offset_fetch": group_requests.offset_fetch,
    "find_coordinator": metadata_requests.find_coordinator,
    "join_group": group_requests.join_group,
    "heartbeat": group_requests.heartbeat,
    "leave_group": group_requests.leave_group,
    "sync_group": group_requests.sync_group,
    "describe_groups": group_requests.describe_groups,
    "list_groups": group_requests.list_groups,
    "sasl_handshake": sasl.sasl_handshake,
    "api_versions": metadata_requests.api_versions,
    "create_topics": admin_requests.create_topics,
    "delete_topics": admin_requests.delete_topics,
    "delete_records": offset_requests.delete_records,
    "init_producer_id": producer_ids.init_producer_id,
    "offset_for_leader_epoch": offset_requests.offset_for_leader_epoch,
    "add_partitions_to_txn": transaction_requests.add_partitions_to_txn,
    "add_offsets_to_txn": transaction_requests.add_offsets_to_txn,
    "end_txn": transaction_requests.end_txn,
    "txn_offset_commit": transaction_requests.txn_offset_commit,
    "describe_user_scram_credentials": scram.describe_users,
    "alter_user_scram_credentials": scram.alter_users,
    "describe_client_quotas": quota_requests.describe_client_quotas,
    "alter_client_quotas": quota_requests.alter_client_quotas,
    "describe_acls": acls.describe_acls,
    "create_acls": acls.create_acls,
    "delete_acls": acls.delete_acls,
    "describe_configs": admin_requests.describe_configs,
    "alter_configs": admin_requests.alter_configs,
    "incremental_alter_configs": admin_requests.incremental_alter_configs,
    "describe_log_dirs": metadata_requests.describe_log_dirs,
    "create_partitions": admin_requests.create_partitions,
    "sasl_authenticate": sasl.sasl_authenticate,
    "delete_groups": group_requests.delete_groups,
    "offset_delete": group_requests.offset_delete,
    "describe_cluster": metadata_requests.describe_cluster,
    "describe_topic_partitions": metadata_requests.describe_topic_partitions,
}


CHANGES = frozenset(
    {
        *("create_topics", "delete_topics", "create_partitions", "delete_records"),
        *("alter_configs", "incremental_alter_configs", "create_acls", "delete_acls"),
        *("alter_user_scram_credentials", "alter_client_quotas", "delete_groups", "offset_delete"),
    }
)
"""Requests of an administrator's: each is in the audit log, also where it was refused."""


def refuse_version(request: Request) -> list[Buffer]:
    """Only ApiVersions may come in a version that is not known: it is answered in the layout of version 0, which every
    client reads. Raises PeerError.
    """
    if request.api.name != "api_versions":
        raise PeerError(f"{request.api.name} of version {request.version} is not known here")
    rows = metadata_requests.api_rows(frozenset(HANDLERS))
    return encode_answer(
        BY_NAME["api_versions"], 0, request.correlation, {"error_code": Code.UNSUPPORTED_VERSION, "api_keys": rows}
    )
