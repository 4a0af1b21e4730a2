"""DrillShadows: by what a namespace is known as the shadow of a drill.

Is: its name, and the mark that it is made with, in the policy `properties`. Isn't: the drill
(`region_node.dr.operations.drill`), or what makes a shadow.
Invariants: nobody but a drill sets the mark: whoever sets policies by the admin interface is refused it.
"""

from __future__ import annotations

import re

from heliograph.model.configuration.configuration_records import NamespacePolicies

MARK = "heliograph.shadow-of-a-drill"
"""The property."""
_NAME = re.compile(r".+-drill-\d+")


def mark(shadow: str) -> dict[str, str]:
    """The properties that a shadow is made with."""
    return {MARK: shadow}


def is_marked(name: str, policies: NamespacePolicies | None) -> bool:
    """Whether a drill has made the namespace. name: `tenant/namespace`; None: there is none of that name."""
    return policies is not None and bool(_NAME.fullmatch(name)) and policies.policies.get("properties") == mark(name)
