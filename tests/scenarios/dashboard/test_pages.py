"""The pages: what they say, that they escape everything, and what they cost."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator
from contextlib import contextmanager
from html.parser import HTMLParser

import pytest
from sqlalchemy import event

from floodmark.control import reports
from floodmark.control.ledger import Entry
from floodmark.control.ledger import write as move_ledger
from floodmark.delivery.outcomes import Busy
from floodmark.errors import Permanent
from floodmark.sequence import SequenceRange, Tally
from scenarios.daemons import Places
from scenarios.dashboards import Pages

EVERY = ["/", "/datasets/m", "/sinks/out", "/quarantine", "/senders", "/upkeep"]


class _Text(HTMLParser):
    """The text of a page without its tags, and its scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.parts: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.handlers: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "script":
            self.scripts.append(dict(attrs))
        self.handlers += [name for name, _ in attrs if name.startswith("on") or name == "style"]

    def handle_data(self, data: str) -> None:
        self.parts.append(data)


def parsed(page: str) -> _Text:
    found = _Text()
    found.feed(page)
    return found


def text_of(page: str) -> str:
    return " ".join(" ".join(parsed(page).parts).split())


def test_a_store_without_anything_says_what_to_do_first(pages: Pages) -> None:
    text = text_of(pages.get("/").text)
    assert "floodmark sink add NAME" in text
    assert "All is well." in text


def test_the_overview_shows_each_sink_and_dataset_at_a_glance(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1, 2, 3)
    text = text_of(pages.fresh("/").text)
    assert "All is well. Every row is committed and delivered." in text
    assert "out test up to date 0 s behind 0 rows behind Last delivery 42 s ago Waits for new rows" in text
    assert "m 3 rows committed" in text
    assert "Waiting nothing Last commit 42 s ago Horizon 3 Table 1 files, 1 snapshots" in text


def test_a_sink_that_fails_says_how_far_it_is_behind_why_and_when_it_is_retried(pages: Pages, places: Places) -> None:
    def away() -> None:
        raise Busy("The place is closed.", retry_after_seconds=600)

    places.on_deliver["a"] = away
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1, 2, 3)
    page = pages.fresh("/").text
    text = text_of(page)
    assert "1 thing needs your attention." in text
    assert "sink out fails and is retried: The place is closed." in text
    assert "retrying 42 s behind 3 rows behind" in text
    assert "Last delivery never Waits for its next attempt Next attempt in 9 min" in text
    assert 'data-until="' in page

    places.on_deliver.clear()
    pages.store.export("out")
    assert "out test up to date" in text_of(pages.fresh("/").text)


def test_a_blocked_sink_waits_for_a_person(pages: Pages, places: Places) -> None:
    def wrong() -> None:
        raise Permanent("There is no such place.")

    places.on_deliver["a"] = wrong
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1)
    text = text_of(pages.fresh("/sinks/out").text)
    assert "blocked" in text
    assert "Waits for you: its destination accepts nothing until the cause is corrected" in text
    assert "There is no such place." in text


def test_rows_that_no_process_commits_are_reported(pages: Pages) -> None:
    pages.capture(1)
    pages.store.seal("m")
    pages.run.clock.advance(600)
    text = text_of(pages.fresh("/").text)
    assert "Rows have waited for 10 min 11 s. No process commits them. floodmark run" in text


def test_what_is_paused_says_so_and_how_it_is_resumed(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1)
    pages.store.pause_sink("out")
    pages.store.pause_dataset("m")
    pages.capture(2)
    pages.run.after(1000)
    text = text_of(pages.fresh("/").text)
    assert "sink out is paused. floodmark sink resume out" in text
    assert "dataset m is paused. floodmark dataset resume m" in text
    assert "Waits for you: it is paused" in text
    assert "All is well." in text


def test_a_task_that_fails_is_reported_with_its_reason(pages: Pages) -> None:
    pages.store.engine.database.transact(
        lambda c: reports.record(
            c, "compact", "m", message="A file is missing.", failed=True, now=pages.run.clock.now()
        )
    )
    assert "compact of m A file is missing." in text_of(pages.fresh("/").text)
    assert "A file is missing." in text_of(pages.fresh("/upkeep").text)


def test_quarantine_shows_reasons_samples_and_the_command_that_replays(pages: Pages) -> None:
    pages.store.capture("m", [{"n": 1}, {"n": "seven"}, {"n": "eight"}])
    text = text_of(pages.fresh("/quarantine").text)
    assert "2 rows that did not fit" in text
    assert "seven" in text
    assert "floodmark quarantine replay --all --dataset m" in text


def test_an_audit_is_shown_with_its_date_and_how_to_run_one(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    assert "No audit on record." in text_of(pages.fresh("/sinks/out").text)
    now = pages.run.clock.now()
    pages.store.engine.database.transact(
        lambda c: reports.record(c, "audit", "out", message="3 rows, each once.", failed=False, now=now)
    )
    text = text_of(pages.fresh("/sinks/out").text)
    assert f"{now:%Y-%m-%d %H:%M} UTC (11 s ago): 3 rows, each once." in text
    assert "floodmark audit out" in text


def test_an_audit_that_was_run_is_on_record_with_its_result(pages: Pages, tmp_path) -> None:
    pages.store.add_sink("files", "blob", url=(tmp_path / "out").as_uri())
    pages.deliver(1, 2, 3)
    pages.store.audit("files")
    assert "3 delivered rows in 1 channels, each exactly once" in text_of(pages.fresh("/sinks/files").text)
    for path in (tmp_path / "out").rglob("*.parquet"):
        path.unlink()
    pages.store.audit("files")
    assert "audit of files 1 findings." in text_of(pages.fresh("/").text)


def test_senders_show_who_sent_what_up_to_where_and_what_is_missing(pages: Pages) -> None:
    entry = Entry("edge-1", "m", "all", 90, Tally(80, 7), given_up_rows=10)
    now = pages.run.clock.now()
    pages.store.engine.database.transact(
        lambda c: move_ledger(c, entry, seen=None, given_up=[SequenceRange(20, 30)], now=now)
    )
    text = text_of(pages.fresh("/senders").text)
    assert "edge-1 m 1 80 90 11 s ago 10 rows given up: 21 to 30" in text


def test_the_line_shows_blocks_watermark_horizon_and_allocator(pages: Pages) -> None:
    pages.store.add_dataset("other", schema={"n": "long"})
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1, 2, 3)
    pages.deliver(9, dataset="other")
    pages.deliver(4)
    page = pages.fresh("/datasets/m").text
    label = html.unescape(re.search(r'id="line"[^>]*aria-label="([^"]*)"', page)[1])
    assert label.startswith(
        "Sequence numbers 1 to 10 of m: 2 committed blocks, 0 void blocks, 0 rows removed. The horizon is 5, the "
        "allocator 5. out is delivered up to 5."
    )
    bars = re.findall(r'<rect class="committed" x="([\d.]+)%" y="0" width="([\d.]+)%"', page)
    assert bars == [("0.0", "30.0"), ("40.0", "10.0")], "the number between them is the other dataset's"


def test_the_line_can_be_zoomed_and_stays_inside_of_what_there_is(pages: Pages) -> None:
    pages.deliver(*range(100))
    page = pages.fresh("/datasets/m?from=21&to=40").text
    assert 'data-first="21" data-last="40"' in page
    assert re.search(r'id="zoom-out"[^>]*href="/datasets/m\?from=11&amp;to=50"', page)
    assert re.search(r'id="zoom-in"[^>]*href="/datasets/m\?from=26&amp;to=35"', page)
    for asked in ("from=1000&to=2000", "from=x&to=", "from=-5", "from=99999999999999999999", "to=0", "from=50&to=40"):
        assert pages.get(f"/datasets/m?{asked}").status_code == 200


def test_series_have_a_value_for_each_sample(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    watch = pages.listener.dashboard.watch
    watch.sample()
    pages.deliver(*range(62))
    watch.sample()
    found = pages.get("/series.json?dataset=m&sink=out").json()
    assert len(found["at"]) == 2
    assert found["committed"] == [None, 1.0], "62 rows in 62 seconds"
    assert found["rows"] == [0, 0]
    assert pages.get("/series.json?dataset=none").json()["captured"] == [None, None]


@pytest.mark.parametrize("path", ["/datasets/none", "/sinks/none", "/datasets/<script>"])
def test_a_name_that_is_not_there_is_a_page_that_says_so(pages: Pages, path: str) -> None:
    response = pages.get(path)
    assert response.status_code == 404
    assert "Not here" in response.text
    assert "<script>" not in response.text.replace("<script src", "")


@pytest.mark.parametrize(
    "name", ["..%2fpages.py", "%2e%2e/pages.py", "nothing.css", "htmx.LICENSE", "dashboard.css%00"]
)
def test_only_the_files_of_the_dashboard_are_served(pages: Pages, name: str) -> None:
    assert pages.get(f"/static/{name}").status_code == 404


def test_static_files_are_typed(pages: Pages) -> None:
    for name, media in {"dashboard.css": "text/css", "htmx.min.js": "text/javascript", "mark.svg": "image/svg"}.items():
        assert pages.get(f"/static/{name}").headers["content-type"].startswith(media)


# ── strangers ────────────────────────────────────────────────────────────────────────────────────────────────────────

HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(2)>{{7*7}}\u202e&amp;"


def test_nothing_that_a_stranger_wrote_becomes_markup(pages: Pages, places: Places) -> None:
    """Origins, partitions, reasons, rows and messages are shown as they were written, and run nothing."""

    def wrong() -> None:
        raise Permanent(HOSTILE)

    places.on_deliver["a"] = wrong
    pages.store.add_dataset("p", partition_by=["who"], schema={"n": "long", "who": "string"})
    pages.store.add_sink("out", "test", url="a")
    pages.store.capture("p", [{"n": 1, "who": HOSTILE}])
    pages.store.capture("m", [{"n": 1}, {"n": HOSTILE}])
    pages.run.after(31)
    pages.run.after(31)
    now = pages.run.clock.now()
    entry = Entry(HOSTILE, "m", HOSTILE, 1, Tally(1, 1))
    pages.store.engine.database.transact(lambda c: move_ledger(c, entry, seen=None, given_up=[], now=now))
    pages.store.engine.database.transact(
        lambda c: reports.record(c, HOSTILE, "m", message=HOSTILE, failed=True, now=now)
    )
    shown = 0
    for path in [*EVERY, "/datasets/p"]:
        response = pages.fresh(path)
        assert response.status_code == 200, path
        found = parsed(response.text)
        assert all("src" in script for script in found.scripts), "no script but our files"
        assert len(found.scripts) == 3
        assert found.handlers == [], "no handler and no style in an attribute"
        assert "<img" not in response.text
        assert "49" not in found.parts
        shown += HOSTILE in "".join(found.parts)
    assert shown >= 3, "it is shown, as text"


@pytest.mark.parametrize("path", [*EVERY, "/series.json"])
def test_every_answer_forbids_other_scripts_and_frames(pages: Pages, path: str) -> None:
    pages.store.add_sink("out", "test", url="a")
    policy = pages.fresh(path).headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "script-src 'self';" in policy
    assert "frame-ancestors 'none'" in policy
    assert "unsafe" not in policy


def test_no_file_of_the_dashboard_names_another_place(pages: Pages) -> None:
    """Nothing is loaded from elsewhere."""
    pages.store.add_sink("out", "test", url="a")
    for path in [*EVERY, "/static/dashboard.css", "/static/dashboard.js", "/static/uplot.min.css"]:
        text = pages.fresh(path).text
        assert re.findall(r"""(?:src|href|url|import|fetch)\s*[=(]\s*["']?(?:https?:)?//""", text) == [], path


# ── cost ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def counted(pages: Pages) -> Iterator[list[str]]:
    statements: list[str] = []
    engine = pages.listener._engine.database._engine

    def note(_c, _cursor, statement, *_rest) -> None:
        statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    yield statements
    event.remove(engine, "before_cursor_execute", note)


def cost(pages: Pages, path: str) -> int:
    pages.run.clock.advance(11)
    with counted(pages) as statements:
        pages.get(path)
    return len(statements)


def test_a_page_takes_as_many_statements_for_ten_datasets_as_for_two(pages: Pages) -> None:
    asked = ["/", "/datasets/m", "/metrics"]
    pages.store.add_sink("out", "test", url="a")
    pages.store.add_dataset("d0", partition_by=["who"])
    pages.store.capture("d0", [{"n": 1, "who": "a"}])
    pages.deliver(1)
    pages.fresh("/metrics")
    few = [cost(pages, path) for path in asked]
    for number in range(1, 10):
        pages.store.add_dataset(f"d{number}", partition_by=["who"])
        pages.store.capture(f"d{number}", [{"n": 1, "who": who} for who in "abc"])
    for _ in range(3):
        pages.run.after(31)
    assert [item.rows for item in pages.store.status().datasets] == [1, *[3] * 9, 1]
    assert [cost(pages, path) for path in asked] == few
    assert max(few) < 40


def test_pages_that_are_asked_for_at_once_read_the_store_once(pages: Pages) -> None:
    pages.fresh("/")
    with counted(pages) as statements:
        for _ in range(5):
            pages.get("/")
    assert statements == []
