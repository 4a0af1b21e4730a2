"""Tiered storage by `gs://`: the client that talks to Google's Cloud Storage, over HTTP, with a bearer token or as a
service account: the rules of a store, and a topic that is offloaded, read back, and restored into an empty region from
the bucket alone.

The client speaks Cloud Storage's XML API, whose paths, multipart uploads, ranges, lists, and errors are S3's; so the
server is versitygw, and before it a front door that knows tokens, a service account's own ones, and signed URLs as
Google's does, by the account's public key. (The emulators there are, fake-gcs-server and gcp-storage-emulator, do not
take that API's multipart uploads.) Not shown by it: the token server that other kinds of credentials ask.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import http.client
import json
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import pytest
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import RSAKey

from heliograph.model.errors import StoreRefused
from storage.tiered.objects.builtin_stores import ObstoreStore
from tests.storage.tiered.objects.store_cases import MAKE, check_whole_or_not_at_all, pieces
from tests.system.object_store import ACCESS, BUCKET, S3, SECRET
from tests.system.tier_round_trip import offloaded_and_restored

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

TOKEN = "ya29.of-somebody-who-may"
ACCOUNT = "heliograph@a-project.iam.gserviceaccount.com"
_GOOGLE = "storage.googleapis.com"
_HOP = ("authorization", "connection", "host", "transfer-encoding")


def signed(method: str, host: str, path: str) -> tuple[str, dict[str, str]]:
    """(path, headers) of a request as the server behind the door wants it: by its own key, whatever the body."""
    split = urlsplit(path)
    name = quote(unquote(split.path), safe="/-_.~")
    asked = [pair for pair in parse_qsl(split.query, keep_blank_values=True) if not pair[0].startswith("X-Goog-")]
    query = "&".join(sorted(f"{quote(key, safe='-_.~')}={quote(value, safe='-_.~')}" for key, value in asked))
    now = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    headers = {"host": host, "x-amz-content-sha256": "UNSIGNED-PAYLOAD", "x-amz-date": now}
    names, scope = ";".join(headers), f"{now[:8]}/us-east-1/s3/aws4_request"
    request = "\n".join(
        [method, name, query, *(f"{key}:{value}" for key, value in headers.items()), "", names, "UNSIGNED-PAYLOAD"]
    )
    secret = f"AWS4{SECRET}".encode()
    for part in (
        *scope.split("/"),
        "\n".join(["AWS4-HMAC-SHA256", now, scope, hashlib.sha256(request.encode()).hexdigest()]),
    ):
        secret = hmac.new(secret, part.encode(), hashlib.sha256).digest()
    headers["Authorization"] = (
        f"AWS4-HMAC-SHA256 Credential={ACCESS}/{scope}, SignedHeaders={names}, Signature={secret.hex()}"
    )
    return f"{name}?{query}", headers


class Door(ThreadingHTTPServer):
    """Passes on what bears the token, or what the account that it knows has signed; `calls` says what came."""

    daemon_threads = True

    def __init__(self, s3: S3) -> None:
        super().__init__(("127.0.0.1", 0), _Passing)
        self.s3_port = s3.port
        self.calls: list[str] = []
        self.key = rsa.generate_private_key(public_exponent=65537, key_size=2048)

    def lets_in(self, method: str, path: str, authorization: str) -> bool:
        token = authorization.removeprefix("Bearer ")
        return token == TOKEN or (self._by_the_account(token) if token else self._signed(method, path))

    def _by_the_account(self, token: str) -> bool:
        """A token that its bearer made: no server is asked for one."""
        public = self.key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        try:
            found = jwt.decode(token, RSAKey.import_key(public), algorithms=["RS256"])
        except (JoseError, ValueError):
            return False
        claims = found.claims
        return (
            found.header.get("kid") == "key-1"
            and claims["iss"] == claims["sub"] == ACCOUNT
            and claims["iat"] - 60 < time.time() < claims["exp"]
        )

    def _signed(self, method: str, path: str) -> bool:
        """GOOG4-RSA-SHA256, of which the host is Google's whatever it was sent to."""
        split = urlsplit(path)
        parts = split.query.split("&")
        by = dict(parse_qsl(split.query))
        if by.get("X-Goog-Algorithm") != "GOOG4-RSA-SHA256" or by["X-Goog-SignedHeaders"] != "host":
            return False
        account, _, scope = by["X-Goog-Credential"].partition("/")
        query = "&".join(sorted(part for part in parts if not part.startswith("X-Goog-Signature=")))
        request = "\n".join([method, split.path, query, f"host:{_GOOGLE}", "", "host", "UNSIGNED-PAYLOAD"])
        text = "\n".join(
            [by["X-Goog-Algorithm"], by["X-Goog-Date"], scope, hashlib.sha256(request.encode()).hexdigest()]
        )
        try:
            self.key.public_key().verify(
                bytes.fromhex(by["X-Goog-Signature"]), text.encode(), padding.PKCS1v15(), hashes.SHA256()
            )
        except InvalidSignature:
            return False
        begun = datetime.strptime(by["X-Goog-Date"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).timestamp()
        return account == ACCOUNT and begun - 60 < time.time() < begun + int(by["X-Goog-Expires"])


class _Passing(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Door

    def _pass_on(self) -> None:
        self.server.calls.append(f"{self.command} {self.path}")
        body = self.rfile.read(int(self.headers.get("Content-Length", "0")))
        if not self.server.lets_in(self.command, self.path, self.headers.get("Authorization", "")):
            status, headers, answer = (
                401,
                [("Content-Type", "application/xml")],
                b"<Error><Code>AuthenticationRequired</Code></Error>",
            )
        else:
            inner = http.client.HTTPConnection("127.0.0.1", self.server.s3_port, timeout=30)
            path, own = signed(self.command, f"127.0.0.1:{self.server.s3_port}", self.path)
            inner.request(
                self.command,
                path,
                body,
                {name: value for name, value in self.headers.items() if name.lower() not in _HOP} | own,
            )
            found = inner.getresponse()
            status, headers, answer = found.status, found.getheaders(), found.read()
            inner.close()
        self.send_response(status)
        for name, value in headers:
            if name.lower() not in (*_HOP, "content-length"):
                self.send_header(name, value)
        size = next((value for name, value in headers if name.lower() == "content-length"), "0")
        self.send_header("Content-Length", size if self.command == "HEAD" else str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = _pass_on

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    s3 = S3(tmp_path / "s3")
    try:
        with Door(s3) as server:
            thread = threading.Thread(target=server.serve_forever)
            thread.start()
            yield server
            server.shutdown()
            thread.join()
    finally:
        s3.process.stop()


def options(door: Door, token: str = TOKEN) -> dict[str, str]:
    return {"endpoint": f"http://127.0.0.1:{door.server_address[1]}", "bearer_token": token}


def test_the_bucket_keeps_the_rules_of_a_store(door: Door) -> None:
    asyncio.run(check_whole_or_not_at_all(MAKE(f"gs://{BUCKET}/some/prefix", options(door), 10.0)))
    assert any(call.startswith("POST") and "uploads" in call for call in door.calls)
    with pytest.raises(StoreRefused, match=r"tiered\.options"):
        asyncio.run(MAKE(f"gs://{BUCKET}", options(door, "another"), 10.0).size_bytes("us-1/no"))


def account(door: Door, key: rsa.RSAPrivateKey) -> dict[str, str]:
    """The options of whoever has that key file of the account."""
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = {
        "type": "service_account",
        "private_key": text,
        "private_key_id": "key-1",
        "client_email": ACCOUNT,
        "disable_oauth": False,
    }
    return {"endpoint": options(door)["endpoint"], "service_account_key": json.dumps(file)}


def test_a_service_account_makes_its_own_tokens_and_signs_urls(door: Door) -> None:
    async def main() -> str:
        store = MAKE(f"gs://{BUCKET}/signed", account(door, door.key), 10.0)
        await store.put("us-1/a b", pieces(9_000_000, 5))
        assert (
            await store.size_bytes("us-1/a b") == 9_000_005
            and bytes(await store.read("us-1/a b", 9_000_000, 9_000_005)) == b"\1" * 5
        )
        another = MAKE(
            f"gs://{BUCKET}/signed", account(door, rsa.generate_private_key(public_exponent=65537, key_size=2048)), 10.0
        )
        with pytest.raises(StoreRefused, match=r"tiered\.options"):
            await another.read("us-1/a b", 0, 5)
        assert isinstance(store, ObstoreStore)
        return await store.signed("us-1/a b")

    url = asyncio.run(main())
    with urllib.request.urlopen(
        urllib.request.Request(url, headers={"Range": "bytes=9000000-9000004"}), timeout=30
    ) as answer:
        assert answer.read() == b"\1" * 5, "as a Spark executor reads it, without credentials"
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(url.replace("a%20b", "another"), timeout=30)


def test_a_topic_goes_there_is_read_from_there_and_comes_back_from_there(door: Door, tmp_path: Path) -> None:
    offloaded_and_restored(
        {"store": f"gs://{BUCKET}/region", "options": options(door), "tick_s": 0.2, "manifest_s": 0}, tmp_path
    )
    assert any(call.startswith("GET") and "/ledger/" in call.replace("%2F", "/") for call in door.calls)
