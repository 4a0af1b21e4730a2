"""An example job: how many messages a region's local copy of a topic holds, by the region they were first published in.

`python -m heliograph.spark.origins --admin-url URL --topic TOPIC` prints a JSON object. With `--wait` the session
starts at once, and the two values are read from one line of stdin, so that the JVM is warm when the question comes.
"""

from __future__ import annotations

import argparse
import json
import sys

from heliograph.spark.environment import session


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--admin-url")
    parser.add_argument("--topic")
    parser.add_argument(
        "--wait", action="store_true", help="read {'admin_url': …, 'topic': …} from stdin once the session stands"
    )
    options = parser.parse_args()
    if not options.wait and not (options.admin_url and options.topic):
        parser.error("--admin-url and --topic are needed (or --wait)")
    spark = session("origins")
    question = (
        json.loads(sys.stdin.readline() or "null")
        if options.wait
        else {"admin_url": options.admin_url, "topic": options.topic}
    )
    if question is not None:
        rows = (
            spark.read.format("heliograph")
            .options(**question)
            .load()
            .select("origin_region")
            .groupBy("origin_region")
            .count()
            .collect()
        )
        print(json.dumps({row["origin_region"]: row["count"] for row in rows}), flush=True)
    spark.stop()


if __name__ == "__main__":
    main()
