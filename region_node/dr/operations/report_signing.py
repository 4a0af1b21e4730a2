"""Signing: a report that says later that it is the one that was made, and by which region.

Is: one Ed25519 key a region, made by whoever needs it first; its public half stands in the global configuration. Isn't:
a certificate, or a secret of anybody else: who can read the region's metadata can do everything there anyway.
Format: the signature is over `canonical(report)`: JSON with sorted keys, no spaces, UTF-8, of everything but
`signature`.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

from global_config.keys import REPORT_KEYS
from heliograph.kv.metadata_store import ABSENT, MetadataStore
from heliograph.model.errors import NotAllowed, VersionConflict
from heliograph.runtime.clock import Rng

KEY = "/security/reports"
PUBLIC = REPORT_KEYS
_SEED_BYTES = 32


def canonical(report: Mapping[str, Any]) -> bytes:
    return json.dumps(
        {key: value for key, value in report.items() if key != "signature"},
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
    ).encode()


class Signer:
    """Signs the reports of one region. The key is read, or made, in the region's metadata at each use: none is kept
    here.
    """

    def __init__(self, region: str, meta: MetadataStore, config: MetadataStore, rng: Rng) -> None:
        self._region, self._meta, self._config, self._rng = region, meta, config, rng

    async def sign(self, report: Mapping[str, Any]) -> dict[str, Any]:
        """The report with its signature. Raises MetadataUnavailable."""
        key = await self._key()
        public = key.public_key().public_bytes_raw().hex()
        await self._config.put(f"{PUBLIC}{self._region}/{public}", b"")
        signed = {**report, "signed_by": self._region, "public_key": public}
        return {**signed, "signature": key.sign(canonical(signed)).hex()}

    async def known(self, region: str, public: str) -> bool:
        """Whether that key is one that the region signs with, as the configuration says."""
        return await self._config.get(f"{PUBLIC}{region}/{public}") is not None

    async def _key(self) -> Ed25519PrivateKey:
        found = await self._meta.get(KEY)
        if found is None:
            try:
                await self._meta.put(
                    KEY, self._rng.getrandbits(_SEED_BYTES * 8).to_bytes(_SEED_BYTES, "big"), expected=ABSENT
                )
            except VersionConflict:
                pass  # another broker was faster
            found = await self._meta.get(KEY)
            assert found is not None
        return Ed25519PrivateKey.from_private_bytes(found[0])


def check(report: Mapping[str, Any]) -> None:
    """Whether the signature fits the report and the key that it names. Raises NotAllowed."""
    try:
        public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(str(report["public_key"])))
        public.verify(bytes.fromhex(str(report["signature"])), canonical(report))
    except KeyError as error:
        raise NotAllowed(f"the report is not signed: it has no {error}") from error
    except (ValueError, InvalidSignature) as error:
        raise NotAllowed("the signature does not fit: the report was changed, or is another's") from error
