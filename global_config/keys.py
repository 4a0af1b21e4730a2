"""Keys of the global configuration: those that several packages ask for.

Others stand beside the values that they hold: leadership and writers (`heliograph.model.configuration.leadership`),
tombstones (`heliograph.model.configuration.tombstones`), operations (`region_node.dr.operations.operation`).

/regions/{name}                       RegionInfo
/region-numbers/{number:010}          the name of the region that has, or had, this number: never deleted, so that no
                                      number is used twice
/clusters/{name}                      PulsarCluster
/peers/{name}                         ClusterPeers of a region, or of a Pulsar cluster
/migrations/{name}                    ClusterMigration of a region, or of a Pulsar cluster
/migrated/{tenant}/{namespace}        MigratedNamespace: the regions that send its clients on
/tenants/{tenant}                     TenantInfo
/namespaces/{tenant}/{namespace}      NamespacePolicies
/partitioned/{topic's full name}      PartitionedTopic
/topic-policies/{topic's full name}   TopicPolicies that hold in every region
/resource-groups/{name}               ResourceGroup
/tenant-quotas/{tenant}               TenantQuota
/acls/{tenant}                        TenantAcls (`heliograph.model.configuration.acl_records`)
/data-keys/{region}/{tenant}          data keys of a tenant in a region, wrapped by that region's master key
                                      (`storage.sealing.keyring`)
/dr/keys/{region}/{public key}        empty; a key with which that region signs reports
                                      (`region_node.dr.operations.report_signing`)
/dr/silences/{region}/{broker}.{lease}  Vote of a broker of that region: which others it hears nothing of
                                      (`region_node.dr.operations.silent_regions`)
/revocations/{kind}/{name, quoted}    Revocation (`heliograph.model.configuration.revocations`)
/kafka/scram/{user}/{mechanism}       a SCRAM user of Kafka's clients (`heliograph.model.configuration.kafka_users`)
/kafka/quotas/, /kafka/address-quotas/  what Kafka's clients may take of a broker
                                      (`region_node.faces.kafka.quotas.quota_table`)
/history                              the leaderships of this configuration (`heliograph.kv.history`)
/guard                                empty; put by every write that refers to something, so that what it refers to is
                                      not deleted meanwhile
/forced                               JSON: format 1, generation, by (which region went on alone), at_ms, addresses of
                                      the members that were left behind, "" where settings say them
/restored                             when this was restored from a backup, in wall ms: what is not here any more since
                                      then may have been made after the backup, and was not deleted
counters, apart from keys: region-numbers, topic-incarnations
"""

from __future__ import annotations

REGIONS = "/regions/"
REGION_NUMBERS = "/region-numbers/"
CLUSTERS = "/clusters/"
PEERS = "/peers/"
MIGRATIONS = "/migrations/"
MIGRATED = "/migrated/"
TENANTS = "/tenants/"
NAMESPACES = "/namespaces/"
PARTITIONED = "/partitioned/"
TOPIC_POLICIES = "/topic-policies/"
RESOURCE_GROUPS = "/resource-groups/"
TENANT_QUOTAS = "/tenant-quotas/"
ACLS = "/acls/"
DATA_KEYS = "/data-keys/"
REPORT_KEYS = "/dr/keys/"
GUARD = "/guard"
FORCED = "/forced"
FORCING = "/forcing"
RESTORED = "/restored"
SEEN_BY = "/seen-by/"
OPERATIONS = "/dr/operations/"
AUTOMATIC = "/dr/automatic/"
SILENCES = "/dr/silences/"
NUMBERS = "region-numbers"
INCARNATIONS = "topic-incarnations"


def region(name: str) -> str:
    return REGIONS + name


def seen_by(region_name: str) -> str:
    """The mark by which a region knows whether the configuration went back."""
    return SEEN_BY + region_name


def region_number(number: int) -> str:
    return f"{REGION_NUMBERS}{number:010d}"


def cluster(name: str) -> str:
    return CLUSTERS + name


def peers(name: str) -> str:
    """name: of a region, or of a Pulsar cluster."""
    return PEERS + name


def migration(name: str) -> str:
    """name: of a region, or of a Pulsar cluster."""
    return MIGRATIONS + name


def migrated(namespace: str) -> str:
    """Names the mark that a namespace is migrated. namespace: `tenant/namespace`."""
    return MIGRATED + namespace


def tenant(name: str) -> str:
    return TENANTS + name


def tenant_quota(tenant: str) -> str:
    return TENANT_QUOTAS + tenant


def acls(tenant: str) -> str:
    return ACLS + tenant


def namespace(name: str) -> str:
    """Names a namespace's policies. name: `tenant/namespace`."""
    return NAMESPACES + name


def partitioned(topic: str) -> str:
    """Names a topic's partition count. topic: its full name, without a partition."""
    return PARTITIONED + topic


def topic_policies(topic: str) -> str:
    """topic: its full name, without a partition."""
    return TOPIC_POLICIES + topic


def resource_group(name: str) -> str:
    return RESOURCE_GROUPS + name


def data_keys(region: str) -> str:
    """Returns the prefix of the data keys that all tenants have in a region."""
    return f"{DATA_KEYS}{region}/"


def data_key(region: str, tenant: str) -> str:
    return data_keys(region) + tenant


def tenant_of(key: str) -> str:
    """The tenant of a key of `data_keys`."""
    return key.rsplit("/", 1)[1]
