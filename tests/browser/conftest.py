"""A store on which rows flow while a real browser looks at it.

The daemon, its threads, the HTTP server and the browser are real; the lake is in memory, so that rows flow at once. One
store serves all tests: each of them looks, and leaves it as it was.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, expect, sync_playwright

from floodmark.control import reports
from floodmark.daemon.listen import Listener
from floodmark.daemon.loop import Daemon
from floodmark.delivery.kinds import KINDS
from floodmark.delivery.outcomes import Busy
from floodmark.store import Store, init, open_store
from floodmark.testing import MemoryLake
from scenarios.daemons import Places
from waiting import wait_until

CHROMIUM = os.environ.get("CHROMIUM", "/usr/bin/chromium")
FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
SCREENSHOTS = os.environ.get("SCREENSHOTS")
"""A directory: then the pictures of the documents are made anew. `make screenshots` sets it."""
PATIENCE_MILLISECONDS = 30_000
expect.set_options(timeout=PATIENCE_MILLISECONDS)


@dataclass
class River:
    """A store with rows that flow."""

    store: Store
    places: Places
    address: str = ""
    _stop: threading.Event = field(default_factory=threading.Event)

    def flow(self) -> None:
        """Capture a few rows, again and again."""
        number = 0
        while not self._stop.wait(0.2):
            rows = [{"gauge": f"gauge-{(number + i) % 4}", "n": number + i, "level": 1.4 + i / 90} for i in range(60)]
            self.store.capture("readings", rows)
            if number % 900 == 0:
                self.store.capture("alarms", [{"n": number}])
            number += len(rows)

    def close_the_harbour(self) -> None:
        def closed() -> None:
            raise Busy("harbour.example is closed for maintenance.", retry_after_seconds=3)

        self.places.on_deliver["harbour"] = closed

    def open_the_harbour(self) -> None:
        self.places.on_deliver.clear()


@pytest.fixture(scope="session")
def river(tmp_path_factory: pytest.TempPathFactory) -> Iterator[River]:
    root = tmp_path_factory.mktemp("browser") / "river"
    lake = MemoryLake()
    init(root, lake=lake).close()
    settings = root / "floodmark.toml"
    text = settings.read_text().replace("# flush_seconds = 30.0", "flush_seconds = 1.0")
    settings.write_text(text.replace("# compact_commits = 60", "compact_commits = 12"))
    places = Places()
    with pytest.MonkeyPatch.context() as patch, open_store(root, lake=lake) as store:
        patch.setitem(KINDS, "test", places.kind)
        river = River(store, places)
        _declare(river, root.parent)
        daemon = Daemon(store, lambda event: None)
        flowing = threading.Thread(target=river.flow, daemon=True)
        running = threading.Thread(target=daemon.run, daemon=True)
        with Listener(daemon, store, "127.0.0.1:0", warn=lambda text: None) as listener:
            river.address = listener.address
            flowing.start()
            running.start()
            wait_until(lambda: store.horizon("readings") > 0)
            yield river
            river._stop.set()
            flowing.join()
            daemon.ask_to_stop("the tests are over")
            running.join(60)


def _declare(river: River, where: Path) -> None:
    store = river.store
    store.add_dataset("readings", partition_by=["gauge"], schema={"gauge": "string", "n": "long", "level": "double"})
    store.add_dataset("alarms", schema={"n": "long"})
    store.add_sink("archive", "blob", url=(where / "archive").as_uri())
    store.add_sink("harbour", "test", url="harbour", datasets=["readings"], chunk_rows=1000)
    store.capture("readings", [{"gauge": "weir", "n": 1, "level": 0.9}, {"gauge": "weir", "n": "two", "level": 1.0}])
    store.capture("readings", [{"gauge": "lock", "n": 3, "level": 1}, {"gauge": "lock", "n": 4, "level": "high"}])
    store.engine.database.transact(
        lambda c: reports.record(
            c,
            "audit",
            "archive",
            message="Every row is there exactly once.",
            failed=False,
            now=store.engine.clock.now(),
        )
    )


# ── the browser ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="session")
def playwright() -> Iterator[Playwright]:
    with sync_playwright() as started:
        yield started


@pytest.fixture(scope="session")
def browser(playwright: Playwright) -> Iterator[Browser]:
    started = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
    yield started
    started.close()


OpenPage = Callable[..., Page]


@pytest.fixture
def open_page(browser: Browser) -> Iterator[OpenPage]:
    """Opens pages. At the end of the test none of them has an error or has asked another place for anything."""
    contexts: list[BrowserContext] = []
    complaints: list[str] = []
    asked: list[str] = []

    def one(
        address: str,
        *,
        width: int = 1280,
        height: int = 900,
        dark: bool = False,
        scripts: bool = True,
        errors: bool = False,
    ) -> Page:
        context = browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if dark else "light",
            java_script_enabled=scripts,
            reduced_motion="reduce",
        )
        contexts.append(context)
        page = context.new_page()
        if not errors:
            page.on("console", lambda line: complaints.append(line.text) if line.type in {"error", "warning"} else None)
            page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(address)
        return page

    yield one
    for context in contexts:
        with contextlib.suppress(Exception):
            context.close()
    assert complaints == []
    assert {url.split("/")[2].partition(":")[0] for url in asked if not url.startswith("data:")} <= {"127.0.0.1"}


@pytest.fixture
def picture() -> Callable[[Page, str], None]:
    """Makes a picture for the documents, where that was asked for."""

    def make(page: Page, name: str) -> None:
        if SCREENSHOTS:
            Path(SCREENSHOTS).mkdir(parents=True, exist_ok=True)
            time.sleep(6)  # for a human eye: the next samples and the chart
            page.screenshot(path=Path(SCREENSHOTS) / f"{name}.png", full_page=False)

    return make
