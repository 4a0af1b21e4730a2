"""Names are written into a path as its parts, whatever is in them."""

import pytest

from heliograph.model.admin_paths import SUBSCRIPTION, path_of
from heliograph.model.errors import ConfigError, NotAllowed


def test_names_fill_a_path() -> None:
    assert path_of("/n/{tenant}/{namespace}/x/{part}", namespace="a/b", part="1/2") == "/n/a/b/x/1%2F2"
    assert path_of("/t/{domain}/{tenant}/{namespace}/{topic}", topic="non-persistent://a/b/c/d").endswith("/a/b/c%2Fd")
    assert path_of(SUBSCRIPTION, topic="t", subscription="a/b").endswith(
        "/persistent/public/default/t/subscription/a%2Fb"
    )
    for wrong in ("a", "a/", "/b", "a/b/c"):
        with pytest.raises(ConfigError, match="is no namespace: expected tenant/namespace"):
            path_of("{tenant}/{namespace}", namespace=wrong)
    with pytest.raises(NotAllowed):
        path_of("{topic}", topic="a/b")
