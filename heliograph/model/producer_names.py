"""Names by which a producer says something of itself."""

from __future__ import annotations

EVERYWHERE = "heliograph.everywhere."
"""A producer whose name begins so is one and the same in every region, also where all of them take messages: whoever
takes such a name promises that no two regions use a sequence of it for different messages. What another region has
of it is not stored again. And it promises a message for each sequence within a batch: of one whose sequences have gaps
(rows that were filtered out) nothing is remembered in other regions, and what is sent again there is stored again.
"""
