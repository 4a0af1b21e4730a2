"""Which requests are answered, by which handler, and what right each wants.

Is: one table, a row a request. Isn't: an answer, or what a right means (`api_rights`).
"""

from __future__ import annotations

from heliograph.model.errors import PeerError
from heliograph.wire.kafka.message_codec import BY_NAME, Request, encode_answer
from heliograph.wire.run import Buffer
from region_node.faces.kafka.administration import admin_requests, metadata_requests
from region_node.faces.kafka.error_codes import Code
from region_node.faces.kafka.produce_fetch import fetch, offset_requests, produce
from region_node.faces.kafka.requests import (
    acl_requests,
    group_requests,
    quota_requests,
    sign_in_requests,
    transaction_requests,
)
from region_node.faces.kafka.security.api_rights import ApiRight as R
from region_node.faces.kafka.security.api_rights import ApiRow, checked

SERVED = checked(
    (
        ApiRow("produce", (R.WRITE_TOPIC, R.WRITE_TRANSACTIONAL_ID), produce.produce),
        ApiRow("fetch", (R.READ_TOPIC,), fetch.fetch),
        ApiRow("list_offsets", (R.DESCRIBE_TOPIC,), offset_requests.list_offsets, reads=True),
        ApiRow("metadata", (R.DESCRIBE_TOPIC,), metadata_requests.metadata, reads=True),
        ApiRow("offset_commit", (R.READ_GROUP, R.READ_TOPIC), group_requests.offset_commit),
        ApiRow("offset_fetch", (R.READ_GROUP, R.READ_TOPIC), group_requests.offset_fetch, reads=True),
        ApiRow("find_coordinator", (R.ANY_GRANT,), metadata_requests.find_coordinator, reads=True),
        ApiRow("join_group", (R.READ_GROUP, R.READ_TOPIC), group_requests.join_group),
        ApiRow("heartbeat", (R.READ_GROUP,), group_requests.heartbeat),
        ApiRow("leave_group", (R.READ_GROUP,), group_requests.leave_group),
        ApiRow("sync_group", (R.READ_GROUP,), group_requests.sync_group),
        ApiRow("describe_groups", (R.DESCRIBE_GROUP,), group_requests.describe_groups, reads=True),
        ApiRow("list_groups", (R.ANY_ROLE,), group_requests.list_groups, reads=True),
        ApiRow("sasl_handshake", (R.NONE,), sign_in_requests.sasl_handshake),
        ApiRow("api_versions", (R.NONE,), metadata_requests.api_versions),
        ApiRow("create_topics", (R.CREATE_TOPIC,), admin_requests.create_topics, changes=True),
        ApiRow("delete_topics", (R.DELETE_TOPIC,), admin_requests.delete_topics, changes=True),
        ApiRow("delete_records", (R.DELETE_TOPIC,), offset_requests.delete_records, changes=True),
        ApiRow(
            "init_producer_id", (R.IDEMPOTENT_WRITE, R.WRITE_TRANSACTIONAL_ID), transaction_requests.init_producer_id
        ),
        ApiRow("offset_for_leader_epoch", (R.DESCRIBE_TOPIC,), offset_requests.offset_for_leader_epoch, reads=True),
        ApiRow(
            "add_partitions_to_txn",
            (R.WRITE_TRANSACTIONAL_ID, R.WRITE_TOPIC),
            transaction_requests.add_partitions_to_txn,
        ),
        ApiRow("add_offsets_to_txn", (R.WRITE_TRANSACTIONAL_ID,), transaction_requests.add_offsets_to_txn),
        ApiRow("end_txn", (R.WRITE_TRANSACTIONAL_ID,), transaction_requests.end_txn),
        ApiRow(
            "txn_offset_commit",
            (R.WRITE_TRANSACTIONAL_ID, R.READ_GROUP, R.READ_TOPIC),
            transaction_requests.txn_offset_commit,
        ),
        ApiRow("describe_user_scram_credentials", (R.SUPER,), sign_in_requests.describe_users, reads=True),
        ApiRow("alter_user_scram_credentials", (R.SUPER,), sign_in_requests.alter_users, changes=True),
        ApiRow("describe_client_quotas", (R.SUPER,), quota_requests.describe_client_quotas, reads=True),
        ApiRow("alter_client_quotas", (R.SUPER,), quota_requests.alter_client_quotas, changes=True),
        ApiRow("describe_acls", (R.TENANT,), acl_requests.describe_acls, reads=True),
        ApiRow("create_acls", (R.TENANT,), acl_requests.create_acls, changes=True),
        ApiRow("delete_acls", (R.TENANT,), acl_requests.delete_acls, changes=True),
        ApiRow("describe_configs", (R.DESCRIBE_TOPIC_CONFIGS, R.TENANT), admin_requests.describe_configs, reads=True),
        ApiRow("alter_configs", (R.ALTER_TOPIC_CONFIGS,), admin_requests.alter_configs, changes=True),
        ApiRow(
            "incremental_alter_configs",
            (R.ALTER_TOPIC_CONFIGS,),
            admin_requests.incremental_alter_configs,
            changes=True,
        ),
        ApiRow("describe_log_dirs", (R.ANY_ROLE,), metadata_requests.describe_log_dirs, reads=True),
        ApiRow("create_partitions", (R.ALTER_TOPIC,), admin_requests.create_partitions, changes=True),
        ApiRow("sasl_authenticate", (R.NONE,), sign_in_requests.sasl_authenticate),
        ApiRow("delete_groups", (R.DELETE_GROUP,), group_requests.delete_groups, changes=True),
        ApiRow("offset_delete", (R.DELETE_GROUP, R.READ_TOPIC), group_requests.offset_delete, changes=True),
        ApiRow("describe_cluster", (R.ANY_ROLE,), metadata_requests.describe_cluster, reads=True),
        ApiRow(
            "describe_topic_partitions", (R.DESCRIBE_TOPIC,), metadata_requests.describe_topic_partitions, reads=True
        ),
    )
)

BEFORE_LOGIN = frozenset(row.name for row in SERVED.values() if R.NONE in row.rights)
"""What is looked into before a client has signed in."""


def refuse_version(request: Request) -> list[Buffer]:
    """Only ApiVersions may come in a version that is not known: it is answered in the layout of version 0, which every
    client reads. Raises PeerError.
    """
    if request.api.name != "api_versions":
        raise PeerError(f"{request.api.name} of version {request.version} is not known here")
    rows = metadata_requests.api_rows(frozenset(SERVED))
    return encode_answer(
        BY_NAME["api_versions"], 0, request.correlation, {"error_code": Code.UNSUPPORTED_VERSION, "api_keys": rows}
    )
