"""How paths of the admin interface begin, as a broker's rows say them and the commands that ask it.

Is: the text, with {names} and the patterns that these have to fit; and filling names in. Isn't: a whole path: the rows
of an area have those.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import quote

from heliograph.model.errors import ConfigError
from heliograph.model.topic_names import TopicName

PARAMETER = re.compile(r"{(\w+)(?::([^{}]*))?}")
"""One name of a path, and the pattern that it has to fit."""

NAMESPACE = "/admin/v2/namespaces/{tenant}/{namespace}"
BUNDLE = f"{NAMESPACE}/{{bundle:0[xX][0-9a-fA-F]+_0[xX][0-9a-fA-F]+}}"
TOPIC = "/admin/v2/{domain:persistent|non-persistent}/{tenant}/{namespace}/{topic}"
SUBSCRIPTION = f"{TOPIC}/subscription/{{subscription}}"
OWN_TOPIC = "/heliograph/v1/topics/{tenant}/{namespace}/{topic}"
DR = "/heliograph/v1/dr/{tenant}/{namespace}"


def path_of(template: str, **names: Any) -> str:
    """The path of a row, its {names} filled in. A `topic`, full or short, says {domain}, {tenant}, and {namespace} too;
    a `namespace`, tenant/namespace, its {tenant}.
    """
    if "topic" in names:
        name = TopicName.parse(names["topic"])
        names |= {"domain": name.domain, "tenant": name.tenant, "namespace": name.namespace_local, "topic": name.local}
    elif "namespace" in names:
        given = names["namespace"]
        names["tenant"], _, names["namespace"] = given.partition("/")
        if not names["tenant"] or not names["namespace"] or "/" in names["namespace"]:
            raise ConfigError(f"{given!r} is no namespace: expected tenant/namespace")
    return PARAMETER.sub(lambda found: quote(str(names[found[1]]), safe=""), template)


def plain(template: str) -> str:
    """It without the patterns of its names."""
    return PARAMETER.sub(r"{\1}", template)


def topic_path(topic: str) -> str:
    return path_of(TOPIC, topic=topic)


def namespace_path(namespace: str) -> str:
    return path_of(NAMESPACE, namespace=namespace)


def dr_path(namespace: str) -> str:
    return path_of(DR, namespace=namespace)
