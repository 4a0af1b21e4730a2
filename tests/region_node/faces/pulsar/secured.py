"""A broker's Pulsar face with authentication and authorisation on, over fake storage, and clients that speak raw frames
to it.

Is: what tests of who may connect, and of who may what, share. Isn't: processes
(`tests/region_node/security/test_secured_region.py`).
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from global_config import keys
from heliograph.model.configuration.acl_records import AclRecord
from heliograph.model.configuration.configuration_records import NamespacePolicies, TenantInfo
from heliograph.wire.pulsar import pulsar_pb2 as pb
from region_node.faces.pulsar.connection.revoked_rights import Revoking
from region_node.security.authentication.authentication_service import MachinePorts, build_authentication
from region_node.security.authorization.authorization_service import Authorization
from region_node.security.authorization.security_service import Security
from region_node.security.settings import SecuritySettings, TokenSettings
from tests.region_node.faces.pulsar.codec import frame
from tests.region_node.faces.pulsar.harness import TOPIC, Broker, Client, K
from tests.region_node.security.authentication.issuer import beside, secret_token

NOW = 1000
Came = list[tuple[pb.BaseCommand, bytes]]


class View:
    """The broker's fake view, with tenants."""

    def __init__(self, broker: Broker) -> None:
        self.broker = broker
        self.records: tuple[AclRecord, ...] = ()
        self.infos = {"public": TenantInfo(admin_roles=("boss",)), "other": TenantInfo(admin_roles=("stranger",))}

    def namespace(self, name: str) -> NamespacePolicies | None:
        return self.broker.view.namespace(name)

    def tenant(self, name: str) -> TenantInfo | None:
        return self.infos.get(name)

    def tenants(self) -> list[str]:
        return sorted(self.infos)

    def namespaces(self, tenant: str) -> list[str]:
        return [name for name in self.broker.view.known if name.startswith(f"{tenant}/")]

    def acls(self, tenant: str) -> tuple[AclRecord, ...]:
        return self.records if tenant == "public" else ()

    def refuse(self, *records: AclRecord) -> None:
        """Kafka's tools have written these ACLs of the tenant, and no others."""
        self.records = records
        for tell in list(self.broker.view.callbacks):
            tell(keys.acls("public"))

    def on_change(self, callback: Callable[[str], None]) -> Callable[[], None]:
        return self.broker.view.on_change(callback)

    def grant(self, **fields: Any) -> None:
        self.broker.view.set("public/default", replace(self.broker.view.known["public/default"], **fields))


def run(
    secret: str,
    test: Callable[[Broker, View], Awaitable[None]],
    *,
    settings: dict[str, Any] | None = None,
    **security: Any,
) -> None:
    async def body() -> None:
        broker = Broker(**(settings or {}))
        view = View(broker)
        own = SecuritySettings(
            **{
                "authentication": ("token", "tls"),
                "tokens": (TokenSettings(algorithms=("HS256",), secret_file=secret),),
                "authorization": True,
                "super_users": ("root",),
                "proxy_roles": ("proxy",),
                **security,
            }
        )
        authentication = build_authentication(
            own, MachinePorts(clock=broker.clock, rng=random.Random(1), fetch=_no_fetch, offload=beside)
        )
        broker.listener.broker.security = Security(authentication, Authorization(own, view))
        revoking = Revoking(broker.listener, view)
        try:
            await test(broker, view)
        finally:
            revoking.close()
            await broker.close()

    asyncio.run(body())


async def _no_fetch(url: str) -> bytes:
    raise OSError(url)


def connecting(data: bytes = b"", method: str = "token", *, refresh: bool = True, **fields: Any) -> bytes:
    flags = {"feature_flags": {"supports_auth_refresh": refresh}}
    return frame(
        K.CONNECT, client_version="t", protocol_version=19, auth_method_name=method, auth_data=data, **flags, **fields
    )


async def client(broker: Broker, role: str, **claims: Any) -> Client:
    made = Client(broker.listener)
    came = await made.do(connecting(secret_token(sub=role, **claims)))
    assert [c.type for c, _ in came] == [K.CONNECTED], came
    return made


def error(came: Came) -> tuple[int, str]:
    (found,) = [c.error for c, _ in came if c.type == K.ERROR]
    return found.error, found.message


async def refused(broker: Broker, *frames: bytes) -> str:
    made = Client(broker.listener)
    code, text = error(await made.do(*frames))
    assert code == pb.AuthenticationError and made.transport.closing
    return text


def asking(request: int = 1) -> dict[str, bytes]:
    return {
        "produce": frame(K.PRODUCER, topic=TOPIC, producer_id=request, request_id=request),
        "consume": frame(
            K.SUBSCRIBE, topic=TOPIC, subscription="s", subType=1, consumer_id=request, request_id=request
        ),
        "look up": frame(K.LOOKUP, topic=TOPIC, request_id=request),
        "partitions": frame(K.PARTITIONED_METADATA, topic=TOPIC, request_id=request),
        "schema": frame(K.GET_SCHEMA, topic=TOPIC, request_id=request),
        "new schema": frame(
            K.GET_OR_CREATE_SCHEMA,
            topic=TOPIC,
            request_id=request,
            schema={"name": "x", "schema_data": b"", "type": pb.Schema.String},
        ),
        "list": frame(K.GET_TOPICS_OF_NAMESPACE, namespace="public/default", request_id=request, mode=0),
        "watch": frame(
            K.WATCH_TOPIC_LIST, namespace="public/default", topics_pattern=".*", watcher_id=request, request_id=request
        ),
        "join": frame(K.ADD_PARTITION_TO_TXN, partitions=[TOPIC], request_id=request),
        "join with acks": frame(
            K.ADD_SUBSCRIPTION_TO_TXN, subscription=[pb.Subscription(topic=TOPIC, subscription="s")], request_id=request
        ),
    }


def codes(came: Came) -> list[int]:
    """Error codes, wherever a response carries them."""
    found = []
    for c, _ in came:
        for name in (
            "error",
            "lookupTopicResponse",
            "partitionMetadataResponse",
            "addPartitionToTxnResponse",
            "addSubscriptionToTxnResponse",
        ):
            if c.HasField(name) and getattr(c, name).HasField("error"):
                found.append(getattr(c, name).error)
        for name in ("getSchemaResponse", "getOrCreateSchemaResponse"):
            if c.HasField(name) and getattr(c, name).HasField("error_code"):
                found.append(getattr(c, name).error_code)
    return found
