"""Two regions and the SCRAM users that they share."""

from __future__ import annotations

import base64
import hashlib
import random

from heliograph.kv.in_process_store import EmbeddedStore
from heliograph.kv.state_machine import KvMachine, MachineSettings
from region_node.faces.kafka.security.scram import ScramUsers, user_of
from region_node.faces.kafka.shared_rows import RowStores

SALT = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
KNOWN = user_of("SCRAM-SHA-256", 4096, SALT, hashlib.pbkdf2_hmac("sha256", b"pencil", SALT, 4096))
SHA = "SCRAM-SHA-256"
OTHER = KNOWN._replace(salt=b"other")


class Regions:
    """Two regions of one configuration; `supers` are told by each region's settings, `shared` by its level."""

    def __init__(self) -> None:
        self.config = EmbeddedStore(KvMachine(settings=MachineSettings(range_limit=3)))
        self.own = {"us": EmbeddedStore(), "eu": EmbeddedStore()}
        self.shared = {"us": True, "eu": True}
        self.users = {name: self.broker(name) for name in self.own}

    def broker(self, region: str) -> ScramUsers:
        stores = RowStores(
            self.config, self.own[region], lambda: self.shared[region], lambda: all(self.shared.values())
        )
        return ScramUsers(stores, random.Random(1), lambda role: role == "root")
