"""Lines of an htpasswd file."""

from __future__ import annotations

import base64
import hashlib

import bcrypt


def line(user: str, password: str, form: str = "2b") -> str:
    if form == "sha":
        return f"{user}:{{SHA}}{base64.b64encode(hashlib.sha1(password.encode()).digest()).decode()}\n"
    return f"{user}:${form}{bcrypt.hashpw(password.encode(), bcrypt.gensalt(4)).decode()[3:]}\n"
