"""Publishes without a pause until its standard input ends, then tells what was confirmed: `python through_an_upgrade.py
SERVICE_URL TOPIC`.

A client as applications have them: an error is tried again until it is confirmed, so whatever is confirmed must be
there, once or more.
"""

from __future__ import annotations

import json
import select
import sys
import time

import pulsar


def main() -> None:
    service, topic = sys.argv[1:]
    client = pulsar.Client(service, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error), operation_timeout_seconds=60)
    producer = client.create_producer(topic, producer_name="through", send_timeout_millis=120_000)
    confirmed, errors, longest_s = 0, 0, 0.0
    print("publishing", flush=True)
    while not select.select([sys.stdin], [], [], 0.02)[0]:
        began = time.monotonic()
        while True:
            try:
                producer.send(str(confirmed).encode())
                break
            except pulsar.PulsarException:
                errors += 1
        longest_s = max(longest_s, time.monotonic() - began)
        confirmed += 1
    producer.close()
    client.close()
    print(json.dumps({"confirmed": confirmed, "errors": errors, "longest_s": round(longest_s, 1)}), flush=True)


if __name__ == "__main__":
    main()
