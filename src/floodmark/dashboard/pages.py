"""The pages: routes, templates and static files.

Everything is rendered here and works without a script. Scripts only fetch the page again every two seconds, draw charts
and move the window of the picture. Names and rows come from strangers: templates escape everything, and the content
security policy allows no script and no style but our files.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

import jinja2
import orjson
from sqlalchemy import Connection
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from floodmark import __version__
from floodmark.control import overview, quarantine, sinks
from floodmark.control.overview import Origin
from floodmark.control.quarantine import Entry
from floodmark.control.tokens import DASHBOARD
from floodmark.dashboard import line, views, words
from floodmark.dashboard.watch import Reading, Watch
from floodmark.engine import Engine
from floodmark.metrics import StoreFigures

Work = Callable[[Request], Awaitable[Response]]

HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
MEDIA = {".css": "text/css; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml"}
ENTRIES_MAX = 500
ORIGINS_MAX = 500
RANGES_MAX = 200
ROWS_MAX = 100
"""How many rows a table on a page has."""


@dataclass(slots=True)
class Dashboard:
    """The pages about one store."""

    engine: Engine
    title: str
    """Which process shows them: `run` or `hub`."""
    running: Callable[[], tuple[Any, ...]] = tuple
    """What this process is doing, each with `kind`, `subject` and `since`."""
    watch: Watch = field(init=False)
    _templates: jinja2.Environment = field(init=False)

    def __post_init__(self) -> None:
        self.watch = Watch(self.engine)
        self._templates = jinja2.Environment(
            loader=jinja2.PackageLoader("floodmark.dashboard"),
            autoescape=True,
            undefined=jinja2.StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        for name in ("duration", "count", "rate", "size", "ago", "until", "span"):
            self._templates.filters[name] = getattr(words, name)
        self._templates.filters["rowcount"] = words.rows
        self._templates.globals["loop_id"] = _element_id

    def figures(self) -> StoreFigures:
        """The store's figures for a scrape; what pages and scrapes have seen is shared."""
        return StoreFigures(self.engine, self.watch.tables, self.watch.waiting)

    def start(self) -> None:
        self.watch.start()

    def stop(self) -> None:
        self.watch.stop()

    # ── routes ───────────────────────────────────────────────────────────────────────────────────────────────────

    def routes(
        self,
        guarded: Callable[[Work], Work],
        allow: Callable[[Request, str], None],
        run: Callable[..., Awaitable[Any]],
    ) -> list[Route]:
        """The routes of an application. `guarded` turns errors into responses, `allow` refuses requests without the
        right, and `run` does work outside of the event loop.
        """

        def page(path: str, work: Callable[[Request], Response]) -> Route:
            async def endpoint(request: Request) -> Response:
                await run(allow, request, DASHBOARD)
                response: Response = await run(work, request)
                return response

            return Route(path, guarded(endpoint), methods=["GET"])

        async def file(request: Request) -> Response:
            return self.static(request)

        return [
            page("/", self.overview),
            page("/datasets/{name}", self.dataset),
            page("/sinks/{name:path}", self.sink),
            page("/quarantine", self.quarantine),
            page("/senders", self.senders),
            page("/upkeep", self.upkeep),
            page("/series.json", self.series),
            Route("/static/{name}", guarded(file), methods=["GET"]),
        ]

    # ── pages ────────────────────────────────────────────────────────────────────────────────────────────────────

    def overview(self, request: Request) -> Response:
        reading, samples = self.watch.now(), self.watch.samples()
        return self._page(
            request,
            "overview.html",
            reading,
            sinks=[views.sink_view(sink, reading.at, samples) for sink in reading.status.sinks],
            datasets=[self._dataset(reading, item.name) for item in reading.status.datasets[:ROWS_MAX]],
        )

    def dataset(self, request: Request) -> Response:
        reading, samples = self.watch.now(), self.watch.samples()
        found = next((one for one in reading.status.datasets if one.name == request.path_params["name"]), None)
        if found is None:
            return self._missing(request, reading)
        asked = [_number(request.query_params.get(name)) for name in ("from", "to")]
        window = line.window_of(*asked, allocated=reading.allocated)
        picture = self.engine.database.read(
            lambda c: line.read_line(c, found, reading.status.sinks, window, allocated=reading.allocated)
        )
        moves = {
            "in": line.zoomed(window, 0.5, allocated=reading.allocated),
            "out": line.zoomed(window, 2.0, allocated=reading.allocated),
            "left": line.zoomed(window, 1.0, allocated=reading.allocated, shift=-0.5),
            "right": line.zoomed(window, 1.0, allocated=reading.allocated, shift=0.5),
        }
        taking = [sink for sink in reading.status.sinks if any(one.dataset == found.name for one in sink.channels)]
        return self._page(
            request,
            "dataset.html",
            reading,
            item=self._dataset(reading, found.name),
            line=picture,
            moves=moves,
            whole=asked == [None, None],
            sinks=[views.sink_view(sink, reading.at, samples) for sink in taking],
            partitions=sorted(found.partitions, key=lambda one: -one.last_seq)[:ROWS_MAX],
        )

    def sink(self, request: Request) -> Response:
        reading, samples = self.watch.now(), self.watch.samples()
        found = next((one for one in reading.status.sinks if one.name == request.path_params["name"]), None)
        if found is None:
            return self._missing(request, reading)
        audit = next((t for t in reading.status.tasks if t.task == views.AUDIT and t.subject == found.name), None)
        return self._page(
            request,
            "sink.html",
            reading,
            view=views.sink_view(found, reading.at, samples),
            channels=sorted(found.channels, key=lambda one: (-one.lag, one.dataset, one.partition))[:ROWS_MAX],
            audit=audit,
        )

    def quarantine(self, request: Request) -> Response:
        def work(connection: Connection) -> tuple[list[Entry], dict[str, str]]:
            newest = quarantine.newest(connection, entries_max=ENTRIES_MAX)
            return newest, {one.instance: one.name for one in sinks.everyone(connection)}

        reading = self.watch.now()
        newest, names = self.engine.database.read(work)
        return self._page(
            request,
            "quarantine.html",
            reading,
            reasons=views.reasons(newest, names),
            entries=len(newest),
            entries_max=ENTRIES_MAX,
        )

    def senders(self, request: Request) -> Response:
        def work(connection: Connection) -> list[Origin]:
            return overview.origins(connection, origins_max=ORIGINS_MAX, ranges_max=RANGES_MAX)

        return self._page(request, "senders.html", self.watch.now(), origins=self.engine.database.read(work))

    def upkeep(self, request: Request) -> Response:
        reading = self.watch.now()
        settings, tasks = self.engine.settings.run, reading.status.tasks
        subjects = [item.name for item in reading.status.datasets[:ROWS_MAX]]
        return self._page(
            request,
            "upkeep.html",
            reading,
            upkeep=[(subject, views.upkeep_of(tasks, subject, settings)) for subject in subjects],
            audits=[one for one in tasks if one.task == views.AUDIT],
            running=self.running(),
        )

    def series(self, request: Request) -> Response:
        """The samples of a dataset or sink, for charts."""
        samples = self.watch.samples()
        found: dict[str, Any] = {"at": [round(one.at, 1) for one in samples]}
        dataset, sink = request.query_params.get("dataset"), request.query_params.get("sink")
        if dataset is not None:
            found["captured"] = views.rates(samples, lambda one: one.captured.get(dataset))
            found["committed"] = views.rates(samples, lambda one: one.committed.get(dataset))
        if sink is not None:
            found["rows"] = [one.lag_rows.get(sink) for one in samples]
            found["seconds"] = [one.lag_seconds.get(sink) for one in samples]
        return Response(orjson.dumps(found), media_type="application/json", headers=HEADERS)

    def static(self, request: Request) -> Response:
        """A file of this room; no path leads out of it, because it is looked up by its name."""
        name = request.path_params["name"]
        known = {item.name: item for item in (resources.files("floodmark.dashboard") / "static").iterdir()}
        media = MEDIA.get(f".{name.rpartition('.')[2]}")
        if name not in known or media is None:
            return Response(b"", status_code=404)
        headers = {"Cache-Control": "max-age=3600", "X-Content-Type-Options": "nosniff"}
        return Response(known[name].read_bytes(), media_type=media, headers=headers)

    # ── around them ──────────────────────────────────────────────────────────────────────────────────────────────

    def _dataset(self, reading: Reading, name: str) -> dict[str, Any]:
        item = next(one for one in reading.status.datasets if one.name == name)
        since = item.spool.since
        return {
            "status": item,
            "captured": self.watch.rate(lambda one: one.captured.get(name)),
            "committed": self.watch.rate(lambda one: one.committed.get(name)),
            "waiting_seconds": None if since is None else (reading.at - since).total_seconds(),
            "table": reading.tables.get(name),
            "upkeep": views.upkeep_of(reading.status.tasks, name, self.engine.settings.run),
        }

    def _missing(self, request: Request, reading: Reading) -> Response:
        response = self._page(request, "missing.html", reading)
        response.status_code = 404
        return response

    def _page(self, request: Request, template: str, reading: Reading, **values: Any) -> Response:
        found = views.attentions(reading, self.engine.settings.run)
        query = f"?{request.url.query}" if request.url.query else ""
        text = self._templates.get_template(template).render(
            now=reading.at,
            store_name=reading.status.store.rstrip("/").rpartition("/")[2],
            store_id=reading.status.store_id,
            title=self.title,
            version=__version__,
            path=request.url.path,
            here=f"{request.url.path}{query}",
            attentions=found,
            verdict=views.verdict(reading, found),
            well=not any(one.level == "bad" for one in found),
            quarantined=sum(one.quarantined for one in reading.status.datasets),
            **values,
        )
        return Response(
            text.encode("utf-8", "backslashreplace"), media_type="text/html; charset=utf-8", headers=HEADERS
        )


def _number(text: str | None) -> int | None:
    """A sequence number of the query; None if it is not one."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 19 else None


def _element_id(name: str) -> str:
    """A name as part of an element's id: letters and digits only, and different for different names."""
    return name.encode("utf-8", "surrogatepass").hex()
