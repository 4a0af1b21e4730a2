"""What an OpenID Connect issuer is asked: where its endpoints are, a device code, the token for it, a newer token.

Is: the questions, their order in time, and each refusal as a sentence. Isn't: HTTP (`issuer_requests`), or keeping what
was given.
Invariants: nothing is asked but by TLS or on this machine; the discovery document names the issuer that was asked; what
an issuer says is shown without control characters, and shortened.
Source: RFC 8628 (device authorization grant), OpenID Connect Discovery 1.0, RFC 6749, RFC 7009.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from heliograph.cli.signing_in.token_store import SignIn
from heliograph.client.secret_urls import secret_may_go_to
from heliograph.model.errors import ConfigError
from heliograph.runtime.clock import Clock

Ask = Callable[[str, Mapping[str, str] | None], tuple[int, dict[str, Any]]]
"""GET of a URL, or POST of a form: the status and a JSON object. Raises OSError where there is no such answer."""

_DEVICE = "urn:ietf:params:oauth:grant-type:device_code"
_INTERVAL_S = 5.0
_INTERVAL_MAX_S = 60.0
_CODE_MAX_S = 1800.0
_TEXT_MAX = 200
_TOKEN_MAX = 16 << 10
_LONGEST_S = 10 * 365 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceCode:
    """What a person is shown. `whole_url`: the same address with the code in it; "" where the issuer has none."""

    code: str
    url: str
    whole_url: str
    lasts_s: float


class OpenIdIssuer:
    """`sleep`: waits so many seconds."""

    def __init__(self, url: str, ask: Ask, clock: Clock, sleep: Callable[[float], None]) -> None:
        if not _safe(url):
            raise ConfigError(f"--issuer: {url!r} must begin with https:// (http:// only for this machine)")
        self.url = url
        self._ask, self._clock, self._sleep = ask, clock, sleep
        self._document: dict[str, Any] = {}

    def sign_in(
        self,
        wanted: SignIn,
        show: Callable[[DeviceCode], None],
        progress: Callable[[str], None],
    ) -> SignIn:
        """wanted: the client, the scope ("": what suits the issuer), the audience. Raises ConfigError."""
        endpoint = self._endpoint(
            "device_authorization_endpoint", "it has no sign-in by a device code (RFC 8628): switch that on there"
        )
        tokens = self._endpoint("token_endpoint", "it gives no tokens")
        wanted = replace(wanted, scope=wanted.scope or self._usual_scope())
        asked = {"client_id": wanted.client_id, "scope": wanted.scope, "audience": wanted.audience}
        status, found = self._answer(endpoint, _filled(asked))
        if status != 200:
            raise ConfigError(self._refusal(found, wanted.client_id))
        device, shown = self._device_code(found)
        interval = max(_seconds(found.get("interval"), _INTERVAL_S, _INTERVAL_MAX_S), 1.0)
        show(shown)
        asked = {"grant_type": _DEVICE, "device_code": device, "client_id": wanted.client_id}
        progress(f"waiting until you confirm it there ({_minutes(shown.lasts_s)} left)")
        began = self._clock.monotonic()
        while (left := shown.lasts_s - (self._clock.monotonic() - began)) > interval:
            self._sleep(interval)
            try:
                status, found = self._ask(tokens, asked)
            except OSError as error:
                interval = min(interval * 2, _INTERVAL_MAX_S)
                progress(f"the issuer does not answer ({error}): asking again in {interval:.0f} s")
                continue
            if status == 200 and "access_token" in found:
                return self._signed_in(wanted, found)
            interval = self._next_interval(status, found, wanted.client_id, interval, left, progress)
        raise ConfigError(self._refusal({"error": "expired_token"}, wanted.client_id))

    def renewed(self, found: SignIn, keep: Callable[[SignIn], None]) -> SignIn:
        """By its refresh token. keep: given the next refresh token before anything else is looked at, as the one before
        may count no more. Raises ConfigError where the issuer refuses; OSError where it does not answer.
        """
        asked = {"grant_type": "refresh_token", "refresh_token": found.refresh_token, "client_id": found.client_id}
        status, answer = self._ask(self._endpoint("token_endpoint", "it gives no tokens"), asked)
        if status != 200:
            if status >= 500 or status == 429:
                raise OSError(f"it answered {status}")
            raise ConfigError(self._refusal(answer, found.client_id))
        if (following := answer.get("refresh_token")) and following != found.refresh_token:
            found = replace(found, refresh_token=str(following))
            keep(found)
        return self._signed_in(found, answer)

    def revoke(self, found: SignIn) -> bool:
        """Ends the refresh token. Returns whether the issuer takes tokens back; raises OSError, ConfigError."""
        endpoint = str(self._discovered().get("revocation_endpoint", ""))
        if not found.refresh_token or not _safe(endpoint):
            return False
        asked = {"token": found.refresh_token, "token_type_hint": "refresh_token", "client_id": found.client_id}
        return self._ask(endpoint, asked)[0] == 200

    def _next_interval(
        self,
        status: int,
        found: Mapping[str, Any],
        client: str,
        interval: float,
        left_s: float,
        progress: Callable[[str], None],
    ) -> float:
        """How long to wait before the next question. Raises ConfigError where no other answer would come."""
        error = found.get("error")
        if error == "slow_down":
            interval = min(interval + 5, _INTERVAL_MAX_S)
            progress(f"the issuer wants to be asked less often: every {interval:.0f} s now")
        elif error == "authorization_pending":
            progress(f"not confirmed yet ({_minutes(left_s - interval)} left)")
        elif status >= 500 or status == 429:
            interval = min(interval * 2, _INTERVAL_MAX_S)
            progress(f"the issuer has trouble of its own ({status}): asking again in {interval:.0f} s")
        else:
            raise ConfigError(self._refusal(found, client))
        return interval

    def _device_code(self, found: Mapping[str, Any]) -> tuple[str, DeviceCode]:
        code, device = _text(found.get("user_code")), str(found.get("device_code") or "")
        url = str(found.get("verification_uri") or found.get("verification_url") or "")
        whole = str(found.get("verification_uri_complete") or "")
        if not code or not device or not _safe(url):
            raise ConfigError(f"the issuer {self.url} gave no code, or no https:// address where it could be confirmed")
        lasts_s = _seconds(found.get("expires_in"), 600.0, _CODE_MAX_S)
        return device, DeviceCode(
            code=code, url=_text(url), whole_url=_text(whole) if _safe(whole) else "", lasts_s=lasts_s
        )

    def _signed_in(self, wanted: SignIn, found: Mapping[str, Any]) -> SignIn:
        """Brokers take JSON web tokens alone: where the access token is none, the ID token is kept."""
        given = [str(found.get(name) or "") for name in ("access_token", "id_token")]
        token = next((text for text in given if claims_of(text)), "")
        if not token:
            raise ConfigError(
                f"the issuer {self.url} gave no JSON web token, which brokers want: let it give client "
                f"{wanted.client_id!r} such access tokens (often by --audience), or ask for --scope openid"
            )
        lasts_s = _seconds(found.get("expires_in"), 0.0, _LONGEST_S)
        ends = claims_of(token).get("exp")
        ends_s = _seconds(ends, 0.0, 1e11) or (self._clock.wall_ms() / 1000 + lasts_s if lasts_s else 0.0)
        return replace(
            wanted,
            token=token,
            refresh_token=str(found.get("refresh_token") or wanted.refresh_token),
            expires_ms=int(ends_s * 1000),
        )

    def _usual_scope(self) -> str:
        known = self._discovered().get("scopes_supported")
        return "openid offline_access" if isinstance(known, list) and "offline_access" in known else "openid"

    def _endpoint(self, name: str, without: str) -> str:
        url = str(self._discovered().get(name) or "")
        if not url:
            raise ConfigError(f"the issuer {self.url} cannot be used here: {without}")
        if not _safe(url):
            raise ConfigError(
                f"the issuer {self.url} names {_text(url)!r}, which is not https://: nothing is sent there"
            )
        return url

    def _discovered(self) -> dict[str, Any]:
        if not self._document:
            status, found = self._answer(f"{self.url.rstrip('/')}/.well-known/openid-configuration", None)
            if status != 200 or found.get("issuer") != self.url:
                said = f"says it is {_text(found.get('issuer'))!r}" if status == 200 else f"answered {status}"
                raise ConfigError(
                    f"{self.url} {said}: give --issuer exactly as its /.well-known/openid-configuration has it"
                )
            self._document = found
        return self._document

    def _answer(self, url: str, form: Mapping[str, str] | None) -> tuple[int, dict[str, Any]]:
        try:
            return self._ask(url, form)
        except OSError as error:
            raise ConfigError(f"the issuer {self.url} does not answer: {error}") from error

    def _refusal(self, found: Mapping[str, Any], client: str) -> str:
        code = _text(found.get("error")) or "no reason"
        sentences = {
            "expired_token": "the code was not confirmed in time: give `heliograph login` again for another",
            "access_denied": "the sign-in was refused: somebody said no at the issuer, or this person may not use "
            f"client {client!r} there",
            "invalid_grant": "the sign-in counts no more at the issuer: sign in again with `heliograph login`",
            "invalid_client": f"the issuer knows no public client {client!r}: check --client-id",
            "unauthorized_client": f"client {client!r} may not sign in by a device code: switch that on at the issuer",
            "invalid_scope": "the issuer does not know the scope: give another one with --scope",
        }
        more = _text(found.get("error_description"))
        return sentences.get(code, f"the issuer {self.url} refused: {code}") + (f" ({more})" if more else "")


def claims_of(token: str) -> dict[str, Any]:
    """What a JSON web token says of itself, which nobody has verified; {}: it is none."""
    parts = token.split(".")
    if len(parts) != 3 or len(token) > _TOKEN_MAX:
        return {}
    try:
        found = json.loads(base64.b64decode(parts[1] + "=" * (-len(parts[1]) % 4), altchars=b"-_", validate=True))
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _safe(url: str) -> bool:
    try:
        return secret_may_go_to(url)
    except ValueError:
        return False


def _filled(form: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in form.items() if value}


def _text(value: Any) -> str:
    """It goes to a terminal: an issuer writes no colours there, and moves no cursor."""
    return "".join(one for one in str(value or "")[:_TEXT_MAX] if one.isprintable())


def _seconds(value: Any, usual: float, most: float) -> float:
    try:
        found = float(usual if value is None else value)
    except (TypeError, ValueError):
        return usual
    return min(found, most) if found > 0 else usual


def _minutes(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{max(seconds, 0):.0f} s"
