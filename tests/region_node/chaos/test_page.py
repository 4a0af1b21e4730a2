"""The page of a run is one file that needs nothing else; what it shows is what the report has."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from region_node.chaos.judge import BrokenPromise
from region_node.chaos.page import page, plot
from tests.region_node.chaos.example_report import report


def test_it_is_one_file_without_scripts_or_addresses() -> None:
    made = page(report())
    assert not re.search(r"<script|<link|<img|https?://|@import|url\(", made) and made.startswith("<!DOCTYPE html>")
    ElementTree.fromstring(made.removeprefix("<!DOCTYPE html>\n").replace('<meta charset="utf-8">', ""))


def test_it_shows_the_verdict_the_faults_and_a_plot_of_each_kind() -> None:
    made = page(report())
    assert "Every promise was kept." in made and "<td>us-bookie-0</td>" in made and '<td class="n">2.5</td>' in made
    assert made.count("<svg") == 3 and made.count('class="band"') == 6, "each plot has both faults"
    assert "us-eu, at most 4,999" in made and "us, at most 12 ms" in made


def test_what_was_broken_is_on_it_and_no_text_of_a_scenario_becomes_markup() -> None:
    made = page(report(BrokenPromise("once", "the copy in <eu>", "3 & more"), scenario="<script>alert(1)</script>"))
    assert "Promises were broken: 1 findings" in made and "Every promise" not in made
    assert "<td>the copy in &lt;eu&gt;</td><td>3 &amp; more</td>" in made and "<script" not in made


def test_a_long_line_keeps_its_peak() -> None:
    points = [[float(at), 0.0] for at in range(10_000)]
    points[4321][1] = 77.0
    drawn = plot({"us": points}, [], 10_000.0, "sent")
    (line,) = re.findall(r'points="([^"]+)"', drawn)
    heights = {pair.partition(",")[2] for pair in line.split()}
    assert len(line.split()) <= 1200 and len(heights) == 2
