"""The messages of Kafka's protocol, as a table: which fields each request and answer has, in which versions.

Is: field names, types, and versions of the requests that a broker of ours answers. Isn't: bytes (`message_codec`).
Source: the protocol's published message definitions; docs/protocols/kafka.md, "Requests".

    name:TYPE[?since][@first[-last]][#tag][=default]      TYPE: a scalar, *TYPE (array of), (fields of a structure)
    ?   may be null, from version `since` on              @   only in these versions; else in all
    #   a tagged field of the flexible versions           =   what is written where nothing is given

A row: number, name, lowest version, highest version, first flexible version (-1: none), request, answer.
"""

from __future__ import annotations

API_ROWS: tuple[tuple[int, str, int, int, int, str, str], ...] = (
    (
        0,
        "produce",
        0,
        13,
        9,
        "transactional_id:str?@3 acks:i16 timeout:i32 topic_data:*(name:str@0-12 topic_id:uuid@13 "
        "partition_data:*(index:i32 records:records?))",
        "responses:*(name:str@0-12 topic_id:uuid@13 partition_responses:*(index:i32 error_code:i16 base_offset:i64 "
        "log_append_time:i64@2=-1 "
        "log_start_offset:i64@5=-1 record_errors:*(batch_index:i32@8 batch_index_error_message:str?@8)@8 "
        "error_message:str?@8 "
        "current_leader:(leader_id:i32@10=-1 leader_epoch:i32@10=-1)@10#0)) throttle_time:i32@1 "
        "node_endpoints:*(node_id:i32@10 host:str@10 port:i32@10 rack:str?@10)@10#0",
    ),
    (
        1,
        "fetch",
        0,
        17,
        12,
        "cluster_id:str?@12#0 replica_id:i32@0-14=-1 replica_state:(replica_id:i32@15=-1 "
        "replica_epoch:i64@15=-1)@15#1 max_wait:i32 min_bytes:i32 "
        "max_bytes:i32@3=2147483647 isolation_level:i8@4 session_id:i32@7 session_epoch:i32@7=-1 "
        "topics:*(topic:str@0-12 topic_id:uuid@13 "
        "partitions:*(partition:i32 current_leader_epoch:i32@9=-1 fetch_offset:i64 last_fetched_epoch:i32@12=-1 "
        "log_start_offset:i64@5=-1 "
        "partition_max_bytes:i32 replica_directory_id:uuid@17#0)) forgotten_topics_data:*(topic:str@7-12 "
        "topic_id:uuid@13 partitions:*i32@7)@7 rack_id:str@11",
        "throttle_time:i32@1 error_code:i16@7 session_id:i32@7 responses:*(topic:str@0-12 topic_id:uuid@13 "
        "partitions:*(partition_index:i32 error_code:i16 high_watermark:i64 "
        "last_stable_offset:i64@4=-1 log_start_offset:i64@5=-1 diverging_epoch:(epoch:i32@12=-1 "
        "end_offset:i64@12=-1)@12#0 "
        "current_leader:(leader_id:i32@12=-1 leader_epoch:i32@12=-1)@12#1 snapshot_id:(end_offset:i64@12=-1 "
        "epoch:i32@12=-1)@12#2 "
        "aborted_transactions:*(producer_id:i64 first_offset:i64)?@4 preferred_read_replica:i32@11=-1 "
        "records:records?)) "
        "node_endpoints:*(node_id:i32@16 host:str@16 port:i32@16 rack:str?@16)@16#0",
    ),
    (
        2,
        "list_offsets",
        0,
        11,
        6,
        "replica_id:i32 isolation_level:i8@2 topics:*(name:str partitions:*(partition_index:i32 "
        "current_leader_epoch:i32@4=-1 timestamp:i64 "
        "max_num_offsets:i32@0-0=1)) timeout:i32@10",
        "throttle_time:i32@2 topics:*(name:str partitions:*(partition_index:i32 error_code:i16 old_offsets:*i64@0-0 "
        "timestamp:i64@1=-1 offset:i64@1=-1 "
        "leader_epoch:i32@4=-1))",
    ),
    (
        3,
        "metadata",
        0,
        13,
        9,
        "topics:*(topic_id:uuid@10 name:str?10)?1 allow_auto_topic_creation:bool@4=1 "
        "include_cluster_authorized_operations:bool@8-10 "
        "include_topic_authorized_operations:bool@8",
        "throttle_time:i32@3 brokers:*(node_id:i32 host:str port:i32 rack:str?@1) cluster_id:str?@2 "
        "controller_id:i32@1=-1 topics:*(error_code:i16 "
        "name:str?12 topic_id:uuid@10 is_internal:bool@1 partitions:*(error_code:i16 partition_index:i32 "
        "leader_id:i32 leader_epoch:i32@7=-1 "
        "replica_nodes:*i32 isr_nodes:*i32 offline_replicas:*i32@5) topic_authorized_operations:i32@8=-2147483648) "
        "cluster_authorized_operations:i32@8-10=-2147483648 error_code:i16@13",
    ),
    (
        8,
        "offset_commit",
        0,
        9,
        8,
        "group_id:str generation_id_or_member_epoch:i32@1=-1 member_id:str@1 group_instance_id:str?@7 "
        "retention_time:i64@2-4=-1 topics:*(name:str "
        "partitions:*(partition_index:i32 committed_offset:i64 committed_leader_epoch:i32@6=-1 "
        "commit_timestamp:i64@1-1=-1 committed_metadata:str?))",
        "throttle_time:i32@3 topics:*(name:str partitions:*(partition_index:i32 error_code:i16))",
    ),
    (
        9,
        "offset_fetch",
        0,
        9,
        6,
        "groups:*(group_id:str@8 member_id:str?@9 member_epoch:i32@9=-1 topics:*(name:str@8 "
        "partition_indexes:*i32@8)?@8)@8 group_id:str@0-7 "
        "topics:*(name:str@0-7 partition_indexes:*i32@0-7)?2@0-7 require_stable:bool@7",
        "throttle_time:i32@3 groups:*(group_id:str@8 topics:*(name:str@8 partitions:*(partition_index:i32@8 "
        "committed_offset:i64@8 "
        "committed_leader_epoch:i32@8=-1 metadata:str?@8 error_code:i16@8)@8)@8 error_code:i16@8)@8 "
        "topics:*(name:str@0-7 "
        "partitions:*(partition_index:i32@0-7 committed_offset:i64@0-7 committed_leader_epoch:i32@5-7=-1 "
        "metadata:str?@0-7 error_code:i16@0-7)@0-7)@0-7 "
        "error_code:i16@2-7",
    ),
    (
        10,
        "find_coordinator",
        0,
        4,
        3,
        "key:str@0-3 key_type:i8@1 coordinator_keys:*str@4",
        "throttle_time:i32@1 coordinators:*(key:str@4 node_id:i32@4 host:str@4 port:i32@4 error_code:i16@4 "
        "error_message:str?@4)@4 error_code:i16@0-3 "
        "error_message:str?@1-3 node_id:i32@0-3 host:str@0-3 port:i32@0-3",
    ),
    (
        11,
        "join_group",
        0,
        9,
        6,
        "group_id:str session_timeout:i32 rebalance_timeout:i32@1=-1 member_id:str group_instance_id:str?@5 "
        "protocol_type:str protocols:*(name:str "
        "metadata:bytes) reason:str?@8",
        "throttle_time:i32@2 error_code:i16 generation_id:i32=-1 protocol_type:str?@7 protocol_name:str?7 leader:str "
        "skip_assignment:bool@9 member_id:str "
        "members:*(member_id:str group_instance_id:str?@5 metadata:bytes)",
    ),
    (
        12,
        "heartbeat",
        0,
        4,
        4,
        "group_id:str generation_id:i32 member_id:str group_instance_id:str?@3",
        "throttle_time:i32@1 error_code:i16",
    ),
    (
        13,
        "leave_group",
        0,
        5,
        4,
        "group_id:str members:*(member_id:str@3 group_instance_id:str?@3 reason:str?@5)@3 member_id:str@0-2",
        "throttle_time:i32@1 error_code:i16 members:*(member_id:str@3 group_instance_id:str?@3 error_code:i16@3)@3",
    ),
    (
        14,
        "sync_group",
        0,
        5,
        4,
        "group_id:str generation_id:i32 member_id:str group_instance_id:str?@3 protocol_type:str?@5 "
        "protocol_name:str?@5 assignments:*(member_id:str "
        "assignment:bytes)",
        "throttle_time:i32@1 error_code:i16 protocol_type:str?@5 protocol_name:str?@5 assignment:bytes",
    ),
    (
        15,
        "describe_groups",
        0,
        5,
        5,
        "groups:*str include_authorized_operations:bool@3",
        "throttle_time:i32@1 groups:*(error_code:i16 group_id:str group_state:str protocol_type:str protocol_data:str "
        "members:*(member_id:str "
        "group_instance_id:str?@4 client_id:str client_host:str member_metadata:bytes member_assignment:bytes) "
        "authorized_operations:i32@3=-2147483648)",
    ),
    (
        16,
        "list_groups",
        0,
        5,
        3,
        "states_filter:*str@4 types_filter:*str@5",
        "throttle_time:i32@1 error_code:i16 groups:*(group_id:str protocol_type:str group_state:str@4 "
        "group_type:str@5)",
    ),
    (
        17,
        "sasl_handshake",
        0,
        1,
        -1,
        "mechanism:str",
        "error_code:i16 mechanisms:*str",
    ),
    (
        18,
        "api_versions",
        0,
        4,
        3,
        "client_software_name:str@3 client_software_version:str@3",
        "error_code:i16 api_keys:*(api_key:i16 min_version:i16 max_version:i16) throttle_time:i32@1 "
        "supported_features:*(name:str@3 min_version:i16@3 "
        "max_version:i16@3)@3#0 finalized_features_epoch:i64@3#1=-1 finalized_features:*(name:str@3 "
        "max_version_level:i16@3 min_version_level:i16@3)@3#2 "
        "zk_migration_ready:bool@3#3",
    ),
    (
        19,
        "create_topics",
        0,
        7,
        5,
        "topics:*(name:str num_partitions:i32 replication_factor:i16 assignments:*(partition_index:i32 "
        "broker_ids:*i32) configs:*(name:str value:str?)) "
        "timeout:i32=60000 validate_only:bool@1",
        "throttle_time:i32@2 topics:*(name:str topic_id:uuid@7 error_code:i16 error_message:str?@1 "
        "topic_config_error_code:i16@5#0 num_partitions:i32@5=-1 "
        "replication_factor:i16@5=-1 configs:*(name:str@5 value:str?@5 read_only:bool@5 config_source:i8@5=-1 "
        "is_sensitive:bool@5)?@5)",
    ),
    (
        20,
        "delete_topics",
        0,
        6,
        4,
        "topics:*(name:str?@6 topic_id:uuid@6)@6 topic_names:*str@0-5 timeout:i32",
        "throttle_time:i32@1 responses:*(name:str?6 topic_id:uuid@6 error_code:i16 error_message:str?@5)",
    ),
    (
        21,
        "delete_records",
        0,
        2,
        2,
        "topics:*(name:str partitions:*(partition_index:i32 offset:i64)) timeout:i32",
        "throttle_time:i32 topics:*(name:str partitions:*(partition_index:i32 low_watermark:i64 error_code:i16))",
    ),
    (
        22,
        "init_producer_id",
        0,
        4,
        2,
        "transactional_id:str? transaction_timeout:i32 producer_id:i64@3=-1 producer_epoch:i16@3=-1",
        "throttle_time:i32 error_code:i16 producer_id:i64=-1 producer_epoch:i16",
    ),
    (
        23,
        "offset_for_leader_epoch",
        0,
        4,
        4,
        "replica_id:i32@3=-2 topics:*(topic:str partitions:*(partition:i32 current_leader_epoch:i32@2=-1 "
        "leader_epoch:i32))",
        "throttle_time:i32@2 topics:*(topic:str partitions:*(error_code:i16 partition:i32 leader_epoch:i32@1=-1 "
        "end_offset:i64=-1))",
    ),
    (
        24,
        "add_partitions_to_txn",
        0,
        3,
        3,
        "transactional_id:str producer_id:i64 producer_epoch:i16 topics:*(name:str partitions:*i32)",
        "throttle_time:i32 results:*(name:str partitions:*(partition_index:i32 error_code:i16))",
    ),
    (
        25,
        "add_offsets_to_txn",
        0,
        3,
        3,
        "transactional_id:str producer_id:i64 producer_epoch:i16 group_id:str",
        "throttle_time:i32 error_code:i16",
    ),
    (
        26,
        "end_txn",
        0,
        3,
        3,
        "transactional_id:str producer_id:i64 producer_epoch:i16 committed:bool",
        "throttle_time:i32 error_code:i16",
    ),
    (
        27,
        "write_txn_markers",
        1,
        1,
        1,
        "markers:*(producer_id:i64 producer_epoch:i16 transaction_result:bool topics:*(name:str "
        "partition_indexes:*i32) coordinator_epoch:i32)",
        "markers:*(producer_id:i64 topics:*(name:str partitions:*(partition_index:i32 error_code:i16)))",
    ),
    (
        28,
        "txn_offset_commit",
        0,
        3,
        3,
        "transactional_id:str group_id:str producer_id:i64 producer_epoch:i16 generation_id:i32@3=-1 member_id:str@3 "
        "group_instance_id:str?@3 "
        "topics:*(name:str partitions:*(partition_index:i32 committed_offset:i64 committed_leader_epoch:i32@2=-1 "
        "committed_metadata:str?))",
        "throttle_time:i32 topics:*(name:str partitions:*(partition_index:i32 error_code:i16))",
    ),
    (
        29,
        "describe_acls",
        0,
        2,
        2,
        "resource_type_filter:i8 resource_name_filter:str? pattern_type_filter:i8@1=3 principal_filter:str? "
        "host_filter:str? operation:i8 "
        "permission_type:i8",
        "throttle_time:i32 error_code:i16 error_message:str? resources:*(resource_type:i8 resource_name:str "
        "pattern_type:i8@1=3 acls:*(principal:str "
        "host:str operation:i8 permission_type:i8))",
    ),
    (
        30,
        "create_acls",
        0,
        2,
        2,
        "creations:*(resource_type:i8 resource_name:str resource_pattern_type:i8@1=3 principal:str host:str "
        "operation:i8 permission_type:i8)",
        "throttle_time:i32 results:*(error_code:i16 error_message:str?)",
    ),
    (
        31,
        "delete_acls",
        0,
        2,
        2,
        "filters:*(resource_type_filter:i8 resource_name_filter:str? pattern_type_filter:i8@1=3 principal_filter:str? "
        "host_filter:str? operation:i8 "
        "permission_type:i8)",
        "throttle_time:i32 filter_results:*(error_code:i16 error_message:str? matching_acls:*(error_code:i16 "
        "error_message:str? resource_type:i8 "
        "resource_name:str pattern_type:i8@1=3 principal:str host:str operation:i8 permission_type:i8))",
    ),
    (
        32,
        "describe_configs",
        0,
        4,
        4,
        "resources:*(resource_type:i8 resource_name:str configuration_keys:*str?) include_synonyms:bool@1 "
        "include_documentation:bool@3",
        "throttle_time:i32 results:*(error_code:i16 error_message:str? resource_type:i8 resource_name:str "
        "configs:*(name:str value:str? read_only:bool "
        "is_default:bool@0-0 config_source:i8@1=-1 is_sensitive:bool synonyms:*(name:str value:str? source:i8)@1 "
        "config_type:i8@3 documentation:str?@3))",
    ),
    (
        33,
        "alter_configs",
        0,
        2,
        2,
        "resources:*(resource_type:i8 resource_name:str configs:*(name:str value:str?)) validate_only:bool",
        "throttle_time:i32 responses:*(error_code:i16 error_message:str? resource_type:i8 resource_name:str)",
    ),
    (
        35,
        "describe_log_dirs",
        1,
        4,
        2,
        "topics:*(topic:str partitions:*i32)?",
        "throttle_time:i32 error_code:i16@3 results:*(error_code:i16 log_dir:str topics:*(name:str "
        "partitions:*(partition_index:i32 partition_size:i64 "
        "offset_lag:i64 is_future_key:bool)) total_bytes:i64@4=-1 usable_bytes:i64@4=-1)",
    ),
    (
        36,
        "sasl_authenticate",
        0,
        2,
        2,
        "auth_bytes:bytes",
        "error_code:i16 error_message:str? auth_bytes:bytes session_lifetime:i64@1",
    ),
    (
        37,
        "create_partitions",
        0,
        3,
        2,
        "topics:*(name:str count:i32 assignments:*(broker_ids:*i32)?) timeout:i32 validate_only:bool",
        "throttle_time:i32 results:*(name:str error_code:i16 error_message:str?)",
    ),
    (
        42,
        "delete_groups",
        0,
        2,
        2,
        "groups_names:*str",
        "throttle_time:i32 results:*(group_id:str error_code:i16)",
    ),
    (
        44,
        "incremental_alter_configs",
        0,
        1,
        1,
        "resources:*(resource_type:i8 resource_name:str configs:*(name:str config_operation:i8 value:str?)) "
        "validate_only:bool",
        "throttle_time:i32 responses:*(error_code:i16 error_message:str? resource_type:i8 resource_name:str)",
    ),
    (
        47,
        "offset_delete",
        0,
        0,
        -1,
        "group_id:str topics:*(name:str partitions:*(partition_index:i32))",
        "error_code:i16 throttle_time:i32 topics:*(name:str partitions:*(partition_index:i32 error_code:i16))",
    ),
    (
        48,
        "describe_client_quotas",
        0,
        1,
        1,
        "components:*(entity_type:str match_type:i8 match:str?) strict:bool",
        "throttle_time:i32 error_code:i16 error_message:str? entries:*(entity:*(entity_type:str entity_name:str?) "
        "values:*(key:str value:f64))?",
    ),
    (
        49,
        "alter_client_quotas",
        0,
        1,
        1,
        "entries:*(entity:*(entity_type:str entity_name:str?) ops:*(key:str value:f64 remove:bool)) validate_only:bool",
        "throttle_time:i32 entries:*(error_code:i16 error_message:str? entity:*(entity_type:str entity_name:str?))",
    ),
    (
        50,
        "describe_user_scram_credentials",
        0,
        0,
        0,
        "users:*(name:str)?",
        "throttle_time:i32 error_code:i16 error_message:str? results:*(user:str error_code:i16 error_message:str? "
        "credential_infos:*(mechanism:i8 iterations:i32))",
    ),
    (
        51,
        "alter_user_scram_credentials",
        0,
        0,
        0,
        "deletions:*(name:str mechanism:i8) upsertions:*(name:str mechanism:i8 iterations:i32 salt:bytes "
        "salted_password:bytes)",
        "throttle_time:i32 results:*(user:str error_code:i16 error_message:str?)",
    ),
    (
        60,
        "describe_cluster",
        0,
        1,
        0,
        "include_cluster_authorized_operations:bool endpoint_type:i8@1=1",
        "throttle_time:i32 error_code:i16 error_message:str? endpoint_type:i8@1=1 cluster_id:str controller_id:i32=-1 "
        "brokers:*(broker_id:i32 host:str "
        "port:i32 rack:str?) cluster_authorized_operations:i32=-2147483648",
    ),
    (
        75,
        "describe_topic_partitions",
        0,
        0,
        0,
        "topics:*(name:str) response_partition_limit:i32=2000 cursor:(topic_name:str partition_index:i32)?",
        "throttle_time:i32 topics:*(error_code:i16 name:str? topic_id:uuid is_internal:bool "
        "partitions:*(error_code:i16 partition_index:i32 leader_id:i32 "
        "leader_epoch:i32=-1 replica_nodes:*i32 isr_nodes:*i32 eligible_leader_replicas:*i32? last_known_elr:*i32? "
        "offline_replicas:*i32) "
        "topic_authorized_operations:i32=-2147483648) next_cursor:(topic_name:str partition_index:i32)?",
    ),
)
