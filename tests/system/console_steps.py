"""What a person does with the console in a browser; run by `tests.system.browser.drive` in an environment that has
playwright and nothing of ours.

Each function gets a browser and arguments, and returns what it saw; the test judges.
"""

from __future__ import annotations

import json
import re
import sys
import urllib.request
from pathlib import Path
from typing import Any

from playwright.sync_api import Browser, ConsoleMessage, Page, Request, expect, sync_playwright

WAIT_MS = 120_000
PAGES = (
    "#/map",
    "#/topics/public",
    "#/topics/public/geo/seen",
    "#/topics/public/geo/wide",
    "#/region",
    "#/disaster",
    "#/disaster/public/geo",
    "#/audit",
)
ACCESSIBLE = Path(__file__).with_name("accessible.js").read_text()


def _page(browser: Browser, said: list[str], **context: Any) -> Page:
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(WAIT_MS)
    expect.set_options(timeout=WAIT_MS)
    page.on(
        "console",
        lambda told: said.append(f"{told.type}: {told.text} {told.location['url']}") if _is_fault(told) else None,
    )
    page.on("pageerror", lambda error: said.append(f"thrown: {error}"))
    return page


def _is_fault(told: ConsoleMessage) -> bool:
    """Not that another broker or region, which was asked by way of this one, took too long: the page says so where it
    is to be seen.
    """
    slow = "/console/at/" in told.location["url"] and re.search(r"status of (502|503|504)\b", told.text)
    return told.type in ("error", "warning") and not slow


def _open(page: Page, base: str, place: str) -> None:
    page.goto("about:blank")
    page.goto(f"{base}/console/{place}")
    expect(page.locator("#freshness")).to_contain_text("Live")


def _inside(request: Request, base: str) -> bool:
    """A redirect is shown as a request of its own, also where the page does not follow it (`redirect: "manual"`)."""
    return request.redirected_from is not None or request.url.startswith((base, "data:", "about:"))


def emptied(browser: Browser, base: str) -> dict[str, Any]:
    """What is said of the bookie that is being emptied."""
    said: list[str] = []
    page = _page(browser, said)
    _open(page, base, "#/region")
    told = page.locator("p.good, p.warn").filter(has_text="us-bookie-1 is ")
    expect(told).to_be_visible()
    return {"told": told.inner_text(), "said": said}


def pages(browser: Browser, base: str, pictures: str) -> dict[str, Any]:
    """Every page, by light and by dark, wide and narrow."""
    said: list[str] = []
    found: dict[str, Any] = {}
    for scheme, width in (("light", 1100), ("dark", 390)):
        page = _page(browser, said, color_scheme=scheme, viewport={"width": width, "height": 800})
        outside: list[str] = []
        page.on(
            "request", lambda request, outside=outside: None if _inside(request, base) else outside.append(request.url)
        )
        for place in PAGES:
            _open(page, base, place)
            expect(page.locator("main h2").first).to_be_visible()
            page.wait_for_function("() => document.querySelectorAll('table, .quiet').length > 0")
            found[f"{scheme} {place}"] = {
                **page.evaluate(ACCESSIBLE),
                "text": page.inner_text("main"),
                "outside": list(outside),
            }
            if pictures:
                name = place.removeprefix("#/").replace("/", "-")
                page.screenshot(path=str(Path(pictures) / f"{name}-{scheme}.png"))
        page.context.close()
    return {"pages": found, "said": said}


def keyboard(browser: Browser, base: str) -> dict[str, Any]:
    said: list[str] = []
    page = _page(browser, said)
    _open(page, base, "#/map")
    page.keyboard.press("4")
    expect(page.locator("nav a[aria-current=page]")).to_have_text("Disaster recovery")
    _open(page, base, "#/topics/public/geo/seen")
    button = page.get_by_role("button", name="Clear the backlog of subscription kept")
    button.focus()
    stamp = page.inner_text("#freshness")
    expect(page.locator("#freshness")).not_to_have_text(stamp)
    stayed = page.evaluate("() => document.activeElement.dataset.key")
    page.keyboard.press("Enter")
    expect(page.get_by_role("dialog")).to_be_visible()
    effects = page.inner_text("dialog")
    focused = page.evaluate("() => document.activeElement.textContent")
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_be_hidden()
    return {"stayed": stayed, "effects": effects, "focused": focused, "said": said}


def strange_places(browser: Browser, base: str) -> dict[str, Any]:
    """Somebody with rights follows links whose names a browser would resolve, so that another call is made."""
    asked: list[str] = []
    page = _page(browser, [])
    page.on("request", lambda request: asked.append(request.url))
    for place in ("public/geo/./namespaces", "public/../made/namespaces", "public/geo/seen/topics"):
        _open(page, base, f"#/topics/{place}")
        page.get_by_role("button", name="Unload this topic…").click()
        page.get_by_role("dialog").get_by_role("button", name="Unload", exact=True).click()
        expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("is no ")
        page.keyboard.press("Escape")
    return {"asked": [url for url in asked if "/console/" not in url]}


def silence(browser: Browser, base: str) -> dict[str, Any]:
    """The broker is out of reach for a while, and the page stays open."""
    page = _page(browser, [])
    _open(page, base, "#/region")
    page.context.set_offline(True)
    expect(page.locator("main .refusal").first).to_contain_text("does not answer")
    told = page.inner_text("#freshness")
    page.context.set_offline(False)
    expect(page.locator("#freshness")).to_contain_text("Live")
    expect(page.locator("main .refusal")).to_have_count(0)
    return {"told": told}


def acts(browser: Browser, base: str, coordinate: str) -> dict[str, Any]:
    """Skips one, clears the rest, unloads, and looks a message up in every region."""
    said: list[str] = []
    page = _page(browser, said)
    _open(page, base, "#/topics/public/geo/seen")
    for opening, verb, outcome in (
        ("Skip messages of subscription kept", "Skip", "1 messages were skipped"),
        ("Clear the backlog of subscription kept", "Clear the backlog", "has no backlog"),
        ("Unload this topic…", "Unload", "was unloaded"),
    ):
        page.get_by_role("button", name=opening, exact=True).click()
        page.get_by_role("dialog").get_by_role("button", name=verb, exact=True).click()
        expect(page.get_by_role("dialog")).to_contain_text(outcome)
        page.get_by_role("dialog").get_by_role("button", name="Close").click()
    page.get_by_label("Coordinate").fill(coordinate)
    page.get_by_role("button", name="Look up in every region").click()
    expect(page.get_by_role("region", name="Where it lies")).to_contain_text("eu")
    return {"where": page.get_by_role("region", name="Where it lies").inner_text(), "said": said}


def park(browser: Browser, base: str, topic: str, to: str) -> dict[str, Any]:
    """A link that waits for a decision: what is seen of it, what the act says beforehand, and that it is gone from the
    page afterwards.
    """
    said: list[str] = []
    page = _page(browser, said)
    _open(page, base, f"#/topics/{topic}")
    parked = page.get_by_role("region", name=f"Parked link to {to}")
    expect(parked).to_contain_text("waits for a decision")
    seen = parked.inner_text()
    parked.get_by_role("button", name="Keep what is here…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_contain_text("Messages are not touched")
    effects = dialog.inner_text()
    dialog.get_by_role("button", name="Keep what is here", exact=True).click()
    expect(dialog).to_contain_text("It is decided")
    dialog.get_by_role("button", name="Close").click()
    expect(parked).to_have_count(0)
    return {"seen": seen, "effects": effects, "said": said}


def switchover(browser: Browser, base: str, namespace: str, to: str, pictures: str) -> dict[str, Any]:
    said: list[str] = []
    page = _page(browser, said, viewport={"width": 1100, "height": 700})
    _open(page, base, f"#/disaster/{namespace}")
    expect(page.get_by_role("region", name="Drills")).to_contain_text("passed")
    page.get_by_role("button", name=f"Dry run to {to}").click()
    expect(page.get_by_role("heading", name="Dry run")).to_be_visible()
    dry = page.inner_text("main")
    if pictures:
        page.screenshot(path=str(Path(pictures) / "dry-run.png"), full_page=True)
    page.get_by_text("The newest report").click()
    stamp = page.inner_text("#freshness")
    expect(page.locator("#freshness")).not_to_have_text(stamp)
    report = page.inner_text("pre")
    page.get_by_role("button", name=f"Switch over to {to}…").click()
    effects = page.inner_text("dialog")
    page.get_by_role("dialog").get_by_role("button", name=f"Switch over to {to}", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("It has begun")
    page.get_by_role("dialog").get_by_role("button", name="Close").click()
    expect(page.get_by_role("region", name="Operations that ended")).to_contain_text("done")
    expect(page.locator("main")).to_contain_text(f"Active in {to}")
    return {"dry": dry, "report": report, "effects": effects, "said": said}


def moves(
    browser: Browser, base: str, namespace: str, tenant: str, active: str, to: str, pictures: str
) -> dict[str, Any]:
    """A failover, a drill, and a failback of one namespace, and a switchover of all that a tenant has in a region."""
    said: list[str] = []
    page = _page(browser, said, viewport={"width": 1100, "height": 800})
    box = page.get_by_role("dialog")

    def typed(verb: str, words: str) -> str:
        """Types into the box that is open, presses its button, and closes it; what it said before."""
        go = box.get_by_role("button", name=verb, exact=True)
        expect(go).to_be_disabled()
        effects = page.inner_text("dialog")
        box.get_by_label("Type").fill(words[:-1])
        expect(go).to_be_disabled()
        box.get_by_label("Type").fill(words)
        go.click()
        expect(box).to_contain_text("It has begun")
        box.get_by_role("button", name="Close").click()
        return effects

    _open(page, base, f"#/disaster/{namespace}")
    boxes, reports = {}, {}
    for kind, verb, there in (
        ("drill", "Drill", to),
        ("failover", "Fail over", to),
        ("failback", "Fail back", active),
    ):
        page.get_by_role("button", name=f"{verb} to {there}…").click()
        expect(box).to_be_visible()
        if pictures and kind == "failover":
            page.screenshot(path=str(Path(pictures) / "failover.png"), full_page=True)
        boxes[kind] = typed(f"{verb} to {there}", f"{kind} to {there}")
        report = page.get_by_role("region", name="Report")
        expect(report).to_contain_text("Back within" if kind == "drill" else "Closed for")
        reports[kind] = report.inner_text()
        if kind != "drill":
            expect(page.locator("main")).to_contain_text(f"Active in {there}")
    _open(page, base, "#/disaster")
    page.locator("[data-key=from]").select_option(active)
    page.locator("[data-key=to]").select_option(to)
    page.get_by_label("Of the tenant").fill(tenant)
    page.get_by_role("button", name="Show the plan").click()
    expect(page.get_by_role("region", name="Namespaces of the plan")).to_contain_text(namespace)
    plan = page.inner_text("main")
    if pictures:
        page.screenshot(path=str(Path(pictures) / "plan-of-a-region.png"), full_page=True)
    page.get_by_role("button", name=re.compile(r"^Switch over \d+ namespaces")).click()
    boxes["many"] = typed("Switch over 1 namespaces", f"switchover to {to}")
    report = page.get_by_role("region", name="Report")
    expect(report).to_contain_text("done")
    reports["many"] = report.inner_text()
    return {"boxes": boxes, "reports": reports, "plan": plan, "said": said}


def cut(browser: Browser, base: str, toxiproxy: str, proxies: list[str], pictures: str) -> dict[str, Any]:
    """The map stays open while the link is cut and healed."""
    said: list[str] = []
    page = _page(browser, said, viewport={"width": 1100, "height": 800})
    _open(page, base, "#/map")
    link = page.locator('[data-link="us eu"]')
    expect(link).to_have_class("good")

    def switch(on: bool) -> None:
        for name in proxies:
            body = json.dumps({"enabled": on}).encode()
            urllib.request.urlopen(
                urllib.request.Request(f"http://{toxiproxy}/proxies/{name}", body, method="POST"), timeout=20
            ).read()

    switch(False)
    try:
        expect(link).to_have_class("bad")
        row = page.get_by_role("region", name="Links between regions").locator("tr", has_text="us → eu")
        expect(row).to_have_text(
            re.compile(r"\b(\d+) of \1 down"), use_inner_text=True
        )  # every topic that goes there, whoever made it
        expect(row.locator("td").nth(3)).not_to_have_text("0")
        expect(
            page.get_by_role("region", name="Regions", exact=True).locator("tr", has_text="us").locator("td").nth(4)
        ).not_to_have_text("0.0 s")
        down = row.inner_text()
        if pictures:
            page.screenshot(path=str(Path(pictures) / "map-cut.png"), full_page=True)
    finally:
        switch(True)
    expect(link).to_have_class("good")
    expect(row).not_to_contain_text("down")
    return {"down": down, "said": said}


def signed_in(browser: Browser, base: str, root: str, tenant: str, owner: str) -> dict[str, Any]:
    """Without a token, with a wrong one, as root, as a role that may only consume, and as the admin of tenant shop."""
    said: list[str] = []
    page = _page(browser, said)

    def enter(token: str) -> None:
        page.get_by_label("Token").fill(token)
        page.get_by_role("button", name="Sign in").click()

    page.goto(f"{base}/console/#/map")
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    enter("nonsense")
    expect(page.get_by_role("alert")).to_contain_text("Not signed in")
    wrong = page.get_by_role("alert").inner_text()
    enter(root)
    expect(page.get_by_role("region", name="Regions", exact=True)).to_contain_text("answers")
    kept = page.evaluate("() => [Object.keys(localStorage), document.cookie, location.href]")
    page.get_by_role("button", name="Sign out").click()
    expect(page.get_by_role("heading", name="Sign in")).to_be_visible()
    enter(tenant)
    expect(page.locator("main .refusal").first).to_contain_text("Refused")
    refused = page.locator("main .refusal").first.inner_text()
    page.goto(f"{base}/console/#/topics/public/default/mine")
    page.get_by_role("button", name="Unload this topic…").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload", exact=True).click()
    expect(page.get_by_role("dialog").get_by_role("alert")).to_contain_text("Refused")
    act = page.get_by_role("dialog").get_by_role("alert").inner_text()
    page.keyboard.press("Escape")
    page.get_by_role("button", name="Sign out").click()
    enter(owner)
    page.goto(f"{base}/console/#/topics/shop")
    expect(page.locator("main")).to_contain_text("shop/web/orders")
    own = page.inner_text("main")
    others = {}
    for place in ("topics/public", "region", "audit"):
        page.goto(f"{base}/console/#/{place}")
        expect(page.locator("main .refusal").first).to_contain_text("Refused")
        others[place] = page.inner_text("main")
    page.goto(f"{base}/console/#/topics/shop/web/orders")
    page.get_by_role("button", name="Unload this topic…").click()
    page.get_by_role("dialog").get_by_role("button", name="Unload", exact=True).click()
    expect(page.get_by_role("dialog")).to_contain_text("was unloaded")
    return {"wrong": wrong, "kept": kept, "refused": refused, "act": act, "own": own, "others": others}


def signed_in_at_an_issuer(browser: Browser, base: str) -> dict[str, Any]:
    """By the button, which leads to the issuer and back; then out, and in with a token that is wrong before."""
    said: list[str] = []
    page = _page(browser, said)
    page.goto(f"{base}/console/#/map")
    button = page.get_by_role("button", name="Sign in at")
    expect(button).to_be_focused()
    button.click()
    regions = page.get_by_role("region", name="Regions", exact=True)
    expect(regions).to_contain_text("answers")
    kept = page.evaluate(
        "() => [Object.keys(localStorage), Object.keys(sessionStorage), document.cookie, location.href]"
    )
    cookies = [(one["name"], one["path"], one["httpOnly"], one["sameSite"]) for one in page.context.cookies()]
    page.reload()
    expect(regions).to_contain_text("answers")
    page.goto(f"{base}/console/#/topics/public/default")
    expect(page.locator("main .refusal")).to_have_count(0)
    page.get_by_role("button", name="Sign out").click()
    expect(button).to_be_visible()
    left = page.context.cookies()
    page.get_by_label("Token").fill("nonsense")
    page.get_by_role("button", name="Sign in", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("Not signed in")
    button.click()
    expect(page.get_by_role("button", name="Sign out")).to_be_visible()
    return {"kept": kept, "cookies": cookies, "left": left}


if __name__ == "__main__":
    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(
            executable_path=sys.argv[2], args=["--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]
        )
        print(json.dumps(globals()[sys.argv[1]](chromium, **json.loads(sys.argv[3]))))
        chromium.close()
