"""An identity provider of our own: no real one runs here. It speaks HTTP on this machine, as RFC 8628, RFC 7636, and
OpenID Connect want."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import threading
import time
from typing import Any
from urllib.parse import urlencode

from aiohttp import web
from joserfc import jws
from joserfc.jwk import ECKey

Answer = tuple[int, dict[str, Any]]


class TestIssuer:
    """Discovery, keys, device codes, codes with PKCE, refresh tokens that count once, taking back. `polls`: what the
    next polls are answered before the person has confirmed; `document`, `id_claims`: what is different in the
    discovery document, in ID tokens.
    """

    __test__ = False

    def __init__(self, subject: str = "alice", lasts_s: int = 300) -> None:
        self.subject, self.lasts_s = subject, lasts_s
        self.polls: list[Answer] = []
        self.document: dict[str, Any] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        self.refresh_tokens = {"refresh-0"}
        self.revoked: list[str] = []
        self.redirect = ""
        self.id_claims: dict[str, Any] = {}
        self._codes: dict[str, dict[str, str]] = {}
        self._key = ECKey.generate_key("P-256", auto_kid=True)
        self._loop = asyncio.new_event_loop()
        self._runner: web.AppRunner | None = None
        begun = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(begun,), daemon=True)
        self._thread.start()
        assert begun.wait(30)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(30)

    def __enter__(self) -> TestIssuer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def token(self, **claims: Any) -> str:
        now = int(time.time())
        found = {"iss": self.url, "sub": self.subject, "aud": "heliograph", "iat": now, "exp": now + self.lasts_s}
        header = {"alg": "ES256", "kid": self._key.kid}
        return jws.serialize_compact(header, json.dumps(found | claims).encode(), self._key, algorithms=["ES256"])

    def _run(self, begun: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        begun.set()
        self._loop.run_forever()
        if self._runner is not None:
            self._loop.run_until_complete(self._runner.cleanup())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application()
        app.router.add_get("/.well-known/openid-configuration", self._discovery)
        app.router.add_get("/keys", self._keys)
        app.router.add_get("/authorize", self._authorize)
        app.router.add_post("/device", self._device)
        app.router.add_post("/token", self._token)
        app.router.add_post("/revoke", self._revoke)
        self._runner = web.AppRunner(app)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{self._runner.addresses[0][1]}"

    async def _discovery(self, request: web.Request) -> web.Response:
        if self.redirect:
            return web.Response(status=302, headers={"Location": self.redirect})
        found = {
            "issuer": self.url,
            "jwks_uri": f"{self.url}/keys",
            "token_endpoint": f"{self.url}/token",
            "device_authorization_endpoint": f"{self.url}/device",
            "authorization_endpoint": f"{self.url}/authorize",
            "revocation_endpoint": f"{self.url}/revoke",
            "scopes_supported": ["openid", "offline_access"],
        }
        return web.json_response(found | self.document)

    async def _keys(self, request: web.Request) -> web.Response:
        return web.json_response({"keys": [self._key.as_dict(private=False)]})

    async def _device(self, request: web.Request) -> web.Response:
        self.asked.append(("device", {key: str(value) for key, value in (await request.post()).items()}))
        found = {
            "device_code": "device-0",
            "user_code": "WDJB-MJHT",
            "verification_uri": f"{self.url}/here",
            "verification_uri_complete": f"{self.url}/here?code=WDJB-MJHT",
            "expires_in": 600,
            "interval": 1,
        }
        return web.json_response(found)

    async def _authorize(self, request: web.Request) -> web.Response:
        """The person is signed in there, and says yes."""
        asked = dict(request.query)
        assert asked["response_type"] == "code" and asked["code_challenge_method"] == "S256"
        code = f"code-{len(self._codes)}"
        self._codes[code] = asked
        query = urlencode({"code": code, "state": asked["state"], "iss": self.url})
        return web.Response(status=302, headers={"Location": f"{asked['redirect_uri']}?{query}"})

    def _of_code(self, form: dict[str, str]) -> Answer:
        asked = self._codes.pop(form["code"], None)
        digest = hashlib.sha256(form["code_verifier"].encode()).digest()
        challenge = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if asked is None or challenge != asked["code_challenge"]:
            return 400, {"error": "invalid_grant"}
        if any(form[name] != asked[name] for name in ("client_id", "redirect_uri")):
            return 400, {"error": "invalid_grant"}
        id_token = self.token(**({"aud": form["client_id"], "nonce": asked["nonce"]} | self.id_claims))
        return 200, {"access_token": self.token(), "id_token": id_token, "expires_in": self.lasts_s}

    async def _token(self, request: web.Request) -> web.Response:
        form = {key: str(value) for key, value in (await request.post()).items()}
        self.asked.append(("token", form))
        if form["grant_type"] == "authorization_code":
            status, answer = self._of_code(form)
            return web.json_response(answer, status=status)
        if form["grant_type"] == "refresh_token":
            if form["refresh_token"] not in self.refresh_tokens:
                return web.json_response({"error": "invalid_grant"}, status=400)
            self.refresh_tokens = {f"refresh-{len(self.asked)}"}
        elif form["device_code"] != "device-0":
            return web.json_response({"error": "invalid_grant"}, status=400)
        elif self.polls:
            status, answer = self.polls.pop(0)
            return web.json_response(answer, status=status)
        found = {"access_token": self.token(), "token_type": "Bearer", "expires_in": self.lasts_s}
        return web.json_response(found | {"refresh_token": next(iter(self.refresh_tokens))})

    async def _revoke(self, request: web.Request) -> web.Response:
        self.revoked.append(str((await request.post())["token"]))
        return web.Response()
