"""Reseal jobs: that a tenant's older ledgers are written anew under its newest data key.

Is: POST, GET, and DELETE of `/heliograph/v1/keys/{tenant}/reseal`. Isn't: the work
(`storage.managed_ledger.resealing.reseal_worker`), or which keys may go after it (`data_keys`).
Source: docs/operating/keys.md, "Encryption at rest: older ledgers under a new key".
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from aiohttp import web

from heliograph.kv.metadata_store import MetadataStore
from heliograph.model.errors import KeyMissing, MalformedRequest, NotFound
from heliograph.model.feature_levels import RESEALED_LEDGERS
from region_node.faces.admin.calls.admin_context import Admin
from region_node.faces.admin.calls.call_bodies import OnlyGiven
from region_node.faces.admin.calls.call_rights import CallAccess, Route
from region_node.faces.admin.calls.existing import existing, existing_tenant
from storage.managed_ledger.resealing.reseal_job import ResealJob, begin, cancel, job_of
from storage.sealing.keyring import SETTLED_MS

_BYTES_PER_S = 8 << 20
BYTES_PER_S_MIN = 1 << 10
KEEP_S_MAX = 366 * 24 * 3600


class ResealWanted(OnlyGiven):
    bytes_per_s: int = _BYTES_PER_S
    keep_s: int = SETTLED_MS // 1000


async def start(admin: Admin, request: web.Request, given: ResealWanted) -> dict[str, Any]:
    """Body: how many bytes a second are read for it, and for how many seconds the older copy of a ledger stays beside
    the newer one. {"bytes_per_s": 8388608, "keep_s": 86400}.
    """
    tenant = existing_tenant(admin, request)
    if given.bytes_per_s < BYTES_PER_S_MIN or not 0 <= given.keep_s <= KEEP_S_MAX:
        raise MalformedRequest(
            f"want bytes_per_s of at least {BYTES_PER_S_MIN}, and keep_s of 0 to {KEEP_S_MAX}, not {given.bytes_per_s} "
            f"and {given.keep_s}"
        )
    sealing, meta = admin.sealing, _meta(admin)
    if sealing is None:
        raise KeyMissing("this broker knows of no encryption at rest")
    await sealing.look()
    found = sealing.listing().get(tenant, ())
    if not found:
        raise NotFound(f"tenant {tenant} has no data key in this region: nothing of it is encrypted at rest")
    if admin.reach_level is not None:
        await admin.reach_level(RESEALED_LEDGERS, f"that ledgers of tenant {tenant} are sealed anew")
    key_ms = found[-1].created_ms
    begun_ms, pace = admin.clock.wall_ms(), (given.bytes_per_s, 1000 * given.keep_s)
    job = ResealJob(tenant, begun_ms, key_ms, key_ms + SETTLED_MS, *pace, key=found[-1].number)
    await begin(meta, job)
    admin.changed(request, {}, {"bytes_per_s": given.bytes_per_s, "keep_s": given.keep_s})
    return _shown(job)


async def status(admin: Admin, request: web.Request) -> dict[str, Any]:
    """Says how far the tenant's last job is."""
    tenant = existing_tenant(admin, request)
    error = NotFound(f"no ledgers of tenant {tenant} were ever sealed anew in this region")
    job, _ = existing(await job_of(_meta(admin), tenant), error)
    return _shown(job)


async def end(admin: Admin, request: web.Request) -> dict[str, Any]:
    """Cancels it: what readers go to already stays, the other copies go."""
    return _shown(await cancel(_meta(admin), existing_tenant(admin, request)))


def _meta(admin: Admin) -> MetadataStore:
    assert admin.usage_store is not None
    return admin.usage_store


def _shown(job: ResealJob) -> dict[str, Any]:
    return {**asdict(job), "waits_for": list(job.waits_for)}


_RESEAL = "/heliograph/v1/keys/{tenant}/reseal"
ROUTES: tuple[Route, ...] = (
    Route("POST", _RESEAL, CallAccess.SUPER, start),
    Route("GET", _RESEAL, CallAccess.TENANT, status),
    Route("DELETE", _RESEAL, CallAccess.SUPER, end),
)
