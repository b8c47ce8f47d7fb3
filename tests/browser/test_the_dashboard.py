"""The dashboard in a real browser, while rows flow: a sink fails and recovers, on a phone, in the dark, by keyboard."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from waiting import wait_until

PAGES = ["/", "/datasets/readings", "/sinks/archive", "/quarantine", "/senders", "/upkeep"]


def number(page: Page, selector: str) -> int:
    return int(re.sub(r"\D", "", page.locator(selector).first.inner_text()))


def card(page: Page, name: str):
    return page.locator("article.card").filter(has=page.get_by_role("link", name=name, exact=True))


# ── rows flow ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_rows_that_are_committed_are_seen_without_reloading(river, open_page) -> None:
    page = open_page(river.address)
    rows = card(page, "readings").locator(".figure strong")
    before = rows.inner_text()
    expect(rows).not_to_have_text(before)
    assert page.evaluate("performance.getEntriesByType('navigation').length") == 1


def test_a_sink_that_fails_says_why_and_counts_down_and_recovers_in_front_of_you(river, open_page, picture) -> None:
    page = open_page(river.address)
    sink = card(page, "harbour")
    expect(sink).not_to_contain_text("retrying")

    river.close_the_harbour()
    expect(sink).to_contain_text("retrying")
    expect(sink).to_contain_text("harbour.example is closed for maintenance.")
    expect(sink.locator("[data-until]")).to_have_text(re.compile(r"in \d+ s|now"))
    expect(page.locator("h1")).to_have_text("1 thing needs your attention.")
    expect(page.locator("#live")).to_have_text("1 thing needs your attention."), "a screen reader says it, too"
    expect(page.locator(".attentions")).to_contain_text("sink harbour")
    expect(sink.locator(".figure.small strong")).not_to_have_text("0")
    picture(page, "dashboard-failing")
    page.emulate_media(color_scheme="dark")
    picture(page, "dashboard-dark")

    river.open_the_harbour()
    expect(sink).not_to_contain_text("retrying")
    expect(sink).not_to_contain_text("closed for maintenance")
    expect(page.locator("h1")).to_contain_text("All is well.")
    expect(page.locator("#live")).to_contain_text("All is well.")
    page.emulate_media(color_scheme="light")
    picture(page, "dashboard-overview")


def test_updates_can_be_paused_and_do_not_take_a_selection_away(river, open_page) -> None:
    page = open_page("about:blank")
    page.clock.install()
    page.goto(river.address)
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))

    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(20_000)
    assert asked == [], "twenty seconds on the browser's clock"
    resume = page.get_by_role("button", name="Resume")
    expect(resume).to_have_attribute("aria-pressed", "true")

    resume.click()
    page.evaluate("() => window.getSelection().selectAllChildren(document.querySelector('h1'))")
    page.clock.run_for(20_000)
    assert asked == []
    page.evaluate("() => window.getSelection().removeAllRanges()")
    with page.expect_response(river.address + "/"):
        page.clock.run_for(3_000)


def test_a_process_that_does_not_answer_any_more_is_noticed(river, open_page) -> None:
    page = open_page(river.address, errors=True)
    page.route("**/*", lambda route: route.fulfill(status=503, body=""))
    expect(page.locator("body")).to_have_class("stale")
    page.unroute("**/*")
    expect(page.locator("body")).not_to_have_class("stale")


# ── the picture ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_line_follows_the_rows_and_shows_every_sink(river, open_page, picture) -> None:
    page = open_page(f"{river.address}/datasets/readings", height=1000)
    line = page.locator("#line")
    end = line.get_attribute("data-last")
    expect(line).not_to_have_attribute("data-last", str(end))
    expect(line.locator(".lane-name .name")).to_have_text(["rows", "archive", "harbour"])
    assert line.locator("rect.committed").count() > 1
    assert line.locator("rect.delivered").count() == 2
    expect(page.locator("#chart-rates canvas")).to_be_visible()
    river.close_the_harbour()
    expect(line.locator("rect.pinned")).to_have_count(1)
    expect(line).to_contain_text("rows behind")
    picture(page, "dashboard-dataset")
    river.open_the_harbour()
    expect(line).not_to_contain_text("rows behind")


def test_the_line_is_zoomed_with_buttons_keys_and_the_wheel(river, open_page) -> None:
    page = open_page(f"{river.address}/datasets/readings")
    line = page.locator("#line")

    def width() -> int:
        return int(line.get_attribute("data-last") or 0) - int(line.get_attribute("data-first") or 0) + 1

    whole = width()
    page.get_by_role("button", name="Zoom in").click()
    expect(page).to_have_url(re.compile(r"\?from=\d+&to=\d+$"))
    expect(page.locator("#zoom-all")).not_to_have_attribute("aria-current", "true")
    half = width()
    assert half < whole * 0.7
    line.focus()
    with page.expect_response(re.compile("from=")):
        page.keyboard.press("+")
    wait_until(lambda: width() < half * 0.7)
    small = width()
    first = line.get_attribute("data-first")
    page.keyboard.press("ArrowLeft")
    expect(line).not_to_have_attribute("data-first", str(first))
    assert page.evaluate("document.activeElement.id") == "line", "the keyboard stays where it is"
    line.hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, 300)
    page.keyboard.up("Control")
    wait_until(lambda: width() > small * 1.3)
    line.focus()
    page.keyboard.press("0")
    expect(page.locator("#zoom-all")).to_have_attribute("aria-current", "true")


# ── everybody ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", PAGES)
def test_on_a_phone_nothing_is_cut_off(river, open_page, picture, path: str) -> None:
    page = open_page(river.address + path, width=390, height=844)
    wide = page.evaluate("document.documentElement.scrollWidth")
    assert wide <= 390, f"{wide} pixels"
    small = page.evaluate(
        """() => [...document.querySelectorAll('nav a, .zoom a, button')]
            .filter(e => e.getBoundingClientRect().height < 32).map(e => e.textContent)"""
    )
    assert small == [], "too small for a finger"
    if path in {"/", "/datasets/readings"}:
        picture(page, "dashboard-phone" if path == "/" else "dashboard-phone-dataset")


CONTRAST = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const over = (top, below) => { const a = top[3] ?? 1; return [0, 1, 2].map(i => top[i] * a + below[i] * (1 - a)); };
  const ground = (element) => {
    const layers = [];
    for (let e = element; e; e = e.parentElement) layers.push(parse(getComputedStyle(e).backgroundColor));
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const light = (colour) => {
    const [r, g, b] = colour.map(v => v / 255).map(v => v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const found = [];
  for (const element of document.querySelectorAll('main *, header *')) {
    const own = [...element.childNodes].some(n => n.nodeType === 3 && n.textContent.trim());
    const box = element.getBoundingClientRect();
    if (!own || !box.width || element.closest('svg, .unseen, .chart')) continue;
    const below = ground(element);
    const [a, b] = [light(over(parse(getComputedStyle(element).color), below)), light(below)];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${element.textContent.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return found;
}"""


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("path", PAGES)
def test_every_text_has_enough_contrast(river, open_page, path: str, dark: bool) -> None:
    page = open_page(river.address + path, dark=dark)
    assert page.evaluate(CONTRAST) == []
    ground = page.evaluate("getComputedStyle(document.documentElement).backgroundColor")
    assert (max(map(int, re.findall(r"\d+", ground)[:3])) < 60) == dark


STRUCTURE = """() => {
  const found = [];
  const say = (rule, element) => found.push(`${rule}: ${element.outerHTML.slice(0, 80)}`);
  const name = (e) => (e.getAttribute('aria-label') || e.textContent || '').trim();
  const all = (selector) => [...document.querySelectorAll(selector)];
  if (document.documentElement.lang !== 'en') found.push('no language');
  if (all('h1').length !== 1 || all('main').length !== 1) found.push('not one h1 and one main');
  all('a, button').filter(e => !name(e)).forEach(e => say('no name', e));
  const attribute = (name) => (e) => e.getAttribute(name);
  const label = attribute('aria-label'), labelledBy = attribute('aria-labelledby'), hidden = attribute('aria-hidden');
  all('svg').filter(e => hidden(e) !== 'true' && !label(e)).forEach(e => say('svg', e));
  all('th').filter(e => !e.scope && !e.closest('.chart')).forEach(e => say('th without scope', e));
  all('nav, [role=group], [role=region]').filter(e => !label(e) && !labelledBy(e)).forEach(e => say('no label', e));
  all('[aria-labelledby]').filter(e => !document.getElementById(labelledBy(e))).forEach(e => say('label', e));
  const ids = all('[id]').map(e => e.id);
  if (new Set(ids).size !== ids.length) found.push('an id twice');
  let depth = 0;
  for (const e of all('h1, h2, h3')) {
    const now = Number(e.tagName[1]);
    if (now > depth + 1) say('heading', e);
    depth = now;
  }
  return found;
}"""


@pytest.mark.parametrize("path", PAGES)
def test_a_screen_reader_finds_names_headings_and_labels(river, open_page, path: str) -> None:
    page = open_page(river.address + path)
    assert page.evaluate(STRUCTURE) == []


def test_everything_can_be_reached_with_the_keyboard_and_keeps_the_focus(river, open_page) -> None:
    page = open_page(river.address)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    reached = set()
    for _ in range(40):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("document.activeElement.textContent.trim()"))
    assert {"Overview", "Pause", "archive", "harbour", "readings", "alarms"} <= {one.split("\n")[0] for one in reached}

    page.get_by_role("link", name="readings", exact=True).focus()
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    time = page.locator("footer time").inner_text()
    expect(page.locator("footer time")).not_to_have_text(time)  # the page was refreshed below it
    assert page.evaluate("document.activeElement.textContent") == "readings"
    assert outline == "solid"
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text("readings")


@pytest.mark.parametrize("path", PAGES)
def test_without_scripts_every_page_says_the_same(river, open_page, path: str) -> None:
    page = open_page(river.address + path, scripts=False)
    assert page.locator("h1").inner_text()
    assert page.locator("#pause").is_hidden(), "a button that could do nothing is not there"


def test_quarantined_rows_are_shown_with_reason_and_command(river, open_page, picture) -> None:
    page = open_page(f"{river.address}/quarantine")
    expect(page.locator(".samples").first).to_be_visible()
    expect(page.locator("main")).to_contain_text("floodmark quarantine replay --all --dataset readings")
    picture(page, "dashboard-quarantine")
