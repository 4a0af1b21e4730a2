"""Official clients that come to the region that is not the active one, or are there when it becomes that."""

from __future__ import annotations

import sys

from geo_tests.wan.disaster import active_passive
from geo_tests.wan.instance import Instance
from geo_tests.wan.user_program import UserProgram, check_once, switched_to_and_fro


def test_a_program_with_a_logger_of_its_own_is_led_to_the_active_region_and_publishes_each_message_once(
    pair: Instance,
) -> None:
    """Its own region has two brokers: whichever it asks, the owner knows what it is about."""
    topic, url = "persistent://public/logged/orders", pair.state["regions"]["us"]["service_url"]
    active_passive(pair, "public/logged", "eu")
    program = UserProgram(sys.executable, "-m", "geo_tests.wan.logged_client", url, topic, "logged")
    (said,) = switched_to_and_fro(pair, program, topic)
    sent = int(said.split()[1])
    assert said == f"sent {sent} got {sent}"
    check_once(pair, topic, sent)
