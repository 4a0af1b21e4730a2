"""Which right each call of the admin interface wants: the one table.

Is: rows of method and path template, the first that fits counts. Isn't: the check (`auth_middleware`).
Invariants: what no row names wants an admin of the tenant where the path names one, else a super user: a new call is
closed until a row opens it.
Source: docs/protocols/security.md, "Rights".
"""

from __future__ import annotations

import re
from enum import Enum


class CallAccess(Enum):
    PUBLIC = "anybody"
    METRICS = "anybody, unless the settings say otherwise"
    ANY = "any role"
    PASSED_ON = "any role: whoever is asked in its name checks"
    PRODUCE = "produce to the topic"
    EACH = "consume each of the topics that the body names: the handler checks them"
    CONSUME = "consume the topic, by the subscription where the path names one"
    LOOK_UP = "produce to or consume the topic"
    LIST = "produce to or consume all topics of the namespace"
    TENANT = "an admin of the tenant"
    SUPER = "a super user"


_NAMESPACE = r"/admin/v2/namespaces/\{tenant\}/\{namespace\}"
_TOPICS = r"/admin/v2/\{domain\}/\{tenant\}/\{namespace\}"
_TOPIC = _TOPICS + r"/\{topic\}"
_READ = (
    r"stats|internalStats|partitioned-stats|partitioned-internalStats|internal-info|partitions|"
    r"schemaValidationEnforced|properties|deduplicationEnabled"
)
_CONSUMER = r"subscriptions|subscription/.*|lastMessageId|messageid/.*|examinemessage|ledger/.*|backlogSize|backlog"

ROWS: tuple[tuple[str, str, CallAccess], ...] = (
    ("GET", r"/status\.html|/heliograph/v1/health|/admin/v2/brokers/(health|ready)|/openapi.*", CallAccess.PUBLIC),
    ("GET", r"/console/?|/console/\{file\}", CallAccess.PUBLIC),
    ("*", r"/console/at/\{region\}/\{path\}", CallAccess.PASSED_ON),
    ("GET", r"/metrics/?", CallAccess.METRICS),
    ("GET", r"/admin/v2/clusters|/admin/v2/brokers/version", CallAccess.ANY),
    (
        "*",
        rf"{_NAMESPACE}/persistence/bookieAffinity|{_NAMESPACE}/(antiAffinity|resourcegroup.*|migration)",
        CallAccess.SUPER,
    ),
    ("PUT", rf"{_NAMESPACE}/\{{bundle\}}/split", CallAccess.SUPER),
    ("GET", r"/admin/v2/broker-stats/.*", CallAccess.SUPER),
    ("*", r"/admin/v2/resource-quotas(/.*)?", CallAccess.SUPER),
    ("GET", rf"{_NAMESPACE}/(topics|deduplication)|{_TOPICS}|{_TOPICS}/partitioned", CallAccess.LIST),
    ("GET", rf"{_TOPIC}/({_READ})", CallAccess.LOOK_UP),
    ("*", rf"{_TOPIC}/({_CONSUMER})", CallAccess.CONSUME),
    ("GET", r"/lookup/v2/topic/.*", CallAccess.LOOK_UP),
    ("GET", r"/admin/v2/schemas/\{tenant\}/\{namespace\}/\{topic\}/.*", CallAccess.LOOK_UP),
    ("POST", r"/admin/v2/schemas/\{tenant\}/\{namespace\}/\{topic\}/.*", CallAccess.PRODUCE),
    ("POST", r"/topics/.*\{tenant\}/\{namespace\}/\{topic\}(/.*)?", CallAccess.PRODUCE),
    ("GET", r"/heliograph/v1/topics/\{tenant\}/\{namespace\}/\{topic\}/.*", CallAccess.CONSUME),
    ("POST", r"/heliograph/v1/topics/\{tenant\}/\{namespace\}/\{topic\}/transactions/verdict", CallAccess.SUPER),
    ("POST", r"/heliograph/v1/reading/(snapshots|vectors|hold|held|objects|blocks)", CallAccess.EACH),
    ("DELETE", r"/heliograph/v1/keys/.*", CallAccess.SUPER),
    ("POST", r"/heliograph/v1/keys/\{tenant\}/required", CallAccess.SUPER),
    ("GET", r"/heliograph/v1/dr/\{tenant\}/\{namespace\}(/.*)?", CallAccess.TENANT),
    ("*", r"/heliograph/v1/dr/\{tenant\}/\{namespace\}(/.*)?", CallAccess.SUPER),
    ("PUT", r"/heliograph/v1/tenants/\{tenant\}/quota", CallAccess.SUPER),
    ("DELETE", r"/heliograph/v1/tenants/\{tenant\}/quota", CallAccess.SUPER),
    ("PUT", r"/admin/v2/tenants/.*", CallAccess.SUPER),
    ("POST", r"/admin/v2/tenants/.*", CallAccess.SUPER),
    ("DELETE", r"/admin/v2/tenants/.*", CallAccess.SUPER),
)
_COMPILED = tuple((method, re.compile(path), access) for method, path, access in ROWS)


def access_of(method: str, template: str) -> CallAccess:
    """template: as aiohttp's `canonical`, `/admin/v2/tenants/{tenant}`."""
    method = "GET" if method == "HEAD" else method
    for wanted, path, access in _COMPILED:
        if wanted in ("*", method) and path.fullmatch(template):
            return access
    return CallAccess.TENANT if "{tenant}" in template else CallAccess.SUPER
