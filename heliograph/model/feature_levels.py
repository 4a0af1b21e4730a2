"""Feature levels of a region: what all of its brokers and bookies understand.

Is: the levels, and the one of this version. Isn't: who raises a region's level (`region_node.process.feature_level`),
or the level of links between regions, which each pair agrees on when it connects
(`heliograph.wire.links.link_commands`).
Rule: what older processes would misread is only written once the region's level says that there are none; so each such
thing has a level here.

    1  the first version
    2  bundles are split: a namespace's hash ranges may differ from its policies (/bundles/ in the local metadata)
    3  runs are sealed: blocks whose entries are encrypted at rest; a topic's compacted ledger may lie in an object
       store alone; the oldest ledgers of a topic lie in pages (/ml-pages/)
    4  tenants may have to be encrypted at rest, whatever their namespaces and topics say
       (TenantInfo.encryption_at_rest)
    5  that duty is written in a format that earlier versions refuse, so that none of them takes it off by a change of
       its own
    6  the header of a sealed run is authenticated (blocks of version 2), and what is not sealed so is refused where a
       ledger's metadata says that all of it is (`LedgerMetadata.seal_form`)
    7  the entries of a ledger may lie under another number (/located/), as it was sealed anew
    8  SCRAM users and quotas of Kafka's clients are in the global configuration (/kafka/ there)
"""

from __future__ import annotations

LEVEL = 8
"""The highest level that this version understands."""
SPLIT_BUNDLES = 2
SEALED_RUNS = 3
COMPACTED_OBJECTS = 3
LEDGER_PAGES = 3
SEALED_TENANTS = 5
AUTHENTICATED_SEALS = 6
RESEALED_LEDGERS = 7
KAFKA_USERS_SHARED = 8
