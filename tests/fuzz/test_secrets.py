"""A secret that is planted in every place that takes one: nothing that anybody sees ever shows it."""

from __future__ import annotations

import asyncio
import http.server
import io
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import pytest
from trying import TRIED, scratch_store

import floodmark.store
from floodmark import config
from floodmark.cli.entry import run
from floodmark.errors import FloodmarkError
from floodmark.eventlog import Event, EventLog
from floodmark.hub.access import add_token, list_tokens
from floodmark.hub.app import Hub, build_app
from floodmark.lake.catalogs import configured, loaded
from floodmark.store import Store
from scenarios.delivery.servers import Answer, KeyOnlyServer, Silent, always

SECRET = "pl4nted+s3cret/canary="
BEGINNING = "pl4nted"
"""Its beginning tells it as well, and survives any encoding of the rest."""
UNREACHABLE = "http://127.0.0.1:9"


@dataclass
class Watch:
    """Everything that somebody could see."""

    shown: list[str] = field(default_factory=list)

    def see(self, *things: Any) -> None:
        self.shown += [f"{thing}" for thing in things] + [repr(thing) for thing in things]

    def attempt(self, work: Callable[[], Any]) -> BaseException | None:
        """Whatever comes of it is seen: the result, or the error with everything that hangs below it."""
        TRIED["operations with a planted secret"] += 1
        try:
            self.see(work())
        except FloodmarkError as error:
            self.see(error, error.message, error.hint, "".join(traceback.format_exception(error)))
            return error
        return None

    def command(self, store: Store, *words: str, stdin: bytes = b"") -> int:
        TRIED["operations with a planted secret"] += 1
        out, err = (io.TextIOWrapper(io.BytesIO(), write_through=True) for _ in range(2))
        before, sys.stdin = sys.stdin, io.TextIOWrapper(io.BytesIO(stdin))
        try:
            with redirect_stdout(out), redirect_stderr(err):
                code = run(["-s", str(store.path), *words])
        finally:
            sys.stdin = before
        said = [stream.buffer.getvalue().decode() for stream in (out, err)]
        self.shown += said
        assert "Unexpected failure" not in said[1], said[1]
        return code

    def leaks(self) -> list[str]:
        found = [text for text in self.shown if BEGINNING in text]
        return [text[max(0, text.index(BEGINNING) - 200) : text.index(BEGINNING) + 40] for text in found]


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """Looks at everything, with all logging and all tracebacks on."""
    made = Watch()
    root = logging.getLogger()

    class Listening(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            # A server's own headers, which the HTTP library logs if it is told to debug: what they say is not ours.
            if not record.getMessage().startswith("receive_response_headers"):
                made.shown.append(self.format(record))

    handler = Listening(0)
    before = root.level
    root.addHandler(handler)
    root.setLevel(logging.DEBUG)
    monkeypatch.setenv("FLOODMARK_TRACEBACK", "1")
    yield made
    root.removeHandler(handler)
    root.setLevel(before)
    assert len(made.shown) > 3
    assert made.leaks() == []


@pytest.fixture
def shop(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    """A store with rows to deliver, opened while everything is logged."""
    with scratch_store() as store:
        store.add_dataset("orders", ["id"])
        store.capture("orders", [{"id": number} for number in range(3)])
        store.flush("orders")
        real, lake = floodmark.store.open_store, store.engine.lake
        monkeypatch.setattr(floodmark.store, "open_store", lambda path, **more: real(path, **{**more, "lake": lake}))
        yield store


def looked_at(watch: Watch, store: Store, sink: str) -> None:
    """Every report that could speak of a sink, in Python and on the command line."""
    for work in (
        store.status,
        store.sinks,
        lambda: store.export(sink),
        lambda: store.forecast_export(sink),
        lambda: store.audit(sink),
        lambda: store.audit(sink, deep=True),
        lambda: store.trace("orders", {"id": 1}),
        lambda: store.skip(sink),
        lambda: store.replay(sink),
        store.fsck,
        lambda: store.settings,
    ):
        watch.attempt(work)
    for words in (
        ["status"],
        ["status", "--json"],
        ["sink", "list"],
        ["sink", "list", "--json"],
        ["export", sink, "--json"],
        ["audit", sink, "--json"],
        ["trace", "orders", "id=1", "--json"],
        ["fsck", "--json"],
        ["run", "--once"],
        ["run", "--once", "--json"],
        ["quarantine", "list"],
        ["config", "show"],
        ["config", "show", "--json"],
        ["config", "check", "--json"],
        ["doctor", "--no-spark"],
        ["doctor", "--no-spark", "--json"],
        ["sink", "rewind", sink, "--beginning", "--dry-run", "--json"],
    ):
        watch.command(store, *words)


def given_as(how: str, place: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("PLANTED", SECRET)
    (place / "planted").write_text(SECRET)
    return {"text": SECRET, "env": "env:PLANTED", "file": f"file:{place / 'planted'}"}[how]


# ── forward ──────────────────────────────────────────────────────────────────────────────────────────────────────────

REACTIONS = {
    "stored": None,
    "breaks off": Silent.breaks_off,
    "refused": Answer(401, f"who is {SECRET}?"),
    "poison": Answer(422, json.dumps({"detail": f"Bearer {SECRET}", "hint": SECRET})),
    "conflict": Answer(409, json.dumps({"type": "urn:x:LedgerBehind", "detail": SECRET})),
    "elsewhere": Answer(302, SECRET, {"Location": f"http://x/?token={SECRET}"}),
    "broken": Answer(500, SECRET, {"Retry-After": SECRET}),
}


# Where it comes from makes no difference to what is made of the answer.
HOW = [("text", reaction) for reaction in ("unreachable", *REACTIONS)] + [("env", "refused"), ("file", "unreachable")]


@pytest.mark.parametrize(("how", "reaction"), HOW)
def test_the_token_of_a_forward_sink_is_shown_nowhere(
    watch: Watch, shop: Store, monkeypatch: pytest.MonkeyPatch, how: str, reaction: str
) -> None:
    token = given_as(how, shop.path, monkeypatch)
    with KeyOnlyServer() as server:
        found = REACTIONS.get(reaction)
        server.script = None if found is None else always(found)
        url = UNREACHABLE if reaction == "unreachable" else server.url
        more = {"timeout_seconds": 1, "connect_timeout_seconds": 1, "wait_seconds_max": 0}
        watch.attempt(lambda: shop.add_sink("hub", "forward", url=url, token=token, **more))
        looked_at(watch, shop, "hub")
        watch.attempt(lambda: shop.change_sink("hub", token=f"{SECRET} with blanks"))
        watch.attempt(lambda: shop.change_sink("hub", token=[SECRET]))
        watch.command(shop, "sink", "change", "hub", "--set", f"token={SECRET}")
        looked_at(watch, shop, "hub")
    assert any("Bearer" in text or "hub" in text for text in watch.shown)


# ── object stores ────────────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def echoing(status: int) -> Iterator[str]:
    """A store that refuses everything, and repeats what it was sent."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def respond(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length", 0)))
            body = f"<Error><Code>AccessDenied</Code><Message>{SECRET} {self.headers} {self.path}</Message></Error>"
            self.send_response(status)
            self.send_header("Content-Length", str(len(body.encode())))
            self.end_headers()
            self.wfile.write(body.encode())

        do_GET = do_PUT = do_POST = do_HEAD = respond  # noqa: N815 - the library's names

        def log_message(self, *_: Any) -> None:
            """Nothing."""

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()


ACCOUNT_KEY = json.dumps({"type": "service_account", "private_key": SECRET, "client_email": "x"})
PLACES: dict[str, dict[str, Any]] = {
    "s3": {
        "url": "s3://bucket/prefix",
        "region": "us-east-1",
        "access_key_id": "AKID",
        "secret_access_key": SECRET,
        "session_token": SECRET,
    },
    "az": {"url": "az://container/prefix", "account": "acct", "account_key": SECRET},
    "az token": {"url": "az://container/prefix", "account": "acct", "bearer_token": SECRET},
    "az sas": {"url": "az://container/prefix", "account": "acct", "sas_token": f"sig={SECRET}"},
    "gs": {"url": "gs://bucket/prefix", "service_account": ACCOUNT_KEY},
    "gs token": {"url": "gs://bucket/prefix", "bearer_token": SECRET},
}


@pytest.mark.parametrize("place", list(PLACES))
@pytest.mark.parametrize("status", [None, 403])
def test_the_credentials_of_an_object_store_are_shown_nowhere(
    watch: Watch, shop: Store, monkeypatch: pytest.MonkeyPatch, place: str, status: int | None
) -> None:
    from floodmark.delivery.sinks import objects

    monkeypatch.setitem(objects.RETRIES, "max_retries", 0)
    with echoing(status or 500) as address:
        endpoint = UNREACHABLE if status is None else address
        watch.attempt(lambda: shop.add_sink("objects", "blob", endpoint=endpoint, **PLACES[place]))
        for work in (lambda: shop.export("objects"), lambda: shop.audit("objects"), shop.status, shop.sinks):
            watch.attempt(work)
        for words in (["export", "objects"], ["sink", "list", "--json"], ["run", "--once"], ["status", "--json"]):
            watch.command(shop, *words)


# ── settings that are wrong ──────────────────────────────────────────────────────────────────────────────────────────

WRONG: list[tuple[str, dict[str, Any]]] = [
    ("blob", {"url": f"s3://user:{SECRET}@bucket/x"}),
    ("blob", {"url": f"user:{SECRET}@host/x"}),
    ("blob", {"url": f"https:/user:{SECRET}@host"}),
    ("blob", {"url": f"s3://bucket/x?sig={SECRET}"}),
    ("blob", {"url": f"az://[x/?{SECRET}"}),
    ("blob", {"url": f"s3://user%3A{SECRET}%40host:x/"}),
    ("blob", {"url": "s3://bucket", "endpoint": f"user:{SECRET}@host"}),
    ("blob", {"url": "s3://bucket", "endpoint": f"http://user:{SECRET}@host"}),
    ("blob", {"url": "s3://bucket", "endpoint": f"http://host/?{SECRET}"}),
    ("blob", {"url": "s3://bucket", "secret_access_key": f"{SECRET} x"}),
    ("blob", {"url": "s3://bucket", "secret_access_key": [SECRET]}),
    ("blob", {"url": "s3://bucket", "secret_access_key": {"a": SECRET}}),
    ("blob", {"url": "s3://bucket", "account_key": SECRET}),
    ("blob", {"url": "gs://bucket", "service_account": SECRET}),
    ("blob", {"url": "gs://bucket", "service_account": f"{{{SECRET}"}),
    ("forward", {"url": f"https://user:{SECRET}@hub"}),
    ("forward", {"url": f"user:{SECRET}@hub"}),
    ("forward", {"url": f"https://hub/?token={SECRET}"}),
    ("forward", {"url": f"ftp://user:{SECRET}@hub"}),
    ("forward", {"url": f"https://user:{SECRET}@hub:port"}),
    ("forward", {"url": "https://hub", "token": f"{SECRET}\n"}),
    ("forward", {"url": "https://hub", "token": {"secret": SECRET}}),
    ("forward", {"url": "https://hub", "token": f"file:{SECRET}"}),
    ("forward", {"url": "https://hub", "token": SECRET, "nonsense": 1}),
    ("forward", {"url": "https://hub", "token": SECRET, "chunk_rows": -1}),
]


@pytest.mark.parametrize(("kind", "settings"), WRONG)
def test_a_setting_that_is_refused_is_not_repeated(watch: Watch, shop: Store, kind: str, settings: Any) -> None:
    refused = watch.attempt(lambda: shop.add_sink("wrong", kind, **settings))
    if refused is None:  # only its use shows that it is none
        watch.attempt(lambda: shop.export("wrong"))
    texts = {key: value for key, value in settings.items() if isinstance(value, str) and key not in {"url", "token"}}
    words = [word for key, value in texts.items() for word in ("--set", f"{key}={value}")]
    named = [
        word for key in ("url", "token") if isinstance(settings.get(key), str) for word in (f"--{key}", settings[key])
    ]
    watch.command(shop, "sink", "add", "again", kind, *named, *words)
    watch.command(shop, "sink", "list", "--json")


CATALOGS = [
    f'type = "sql"\nuri = "postgresql://user:{SECRET}@127.0.0.1:9/x"\nwarehouse = "s3://x"',
    f'type = "sql"\nuri = "postgresql://user:{SECRET}@127.0.0.1:port/x"\nwarehouse = "s3://x"',
    f'type = "sql"\nuri = "mysql://user:{SECRET}@127.0.0.1/x"\nwarehouse = "s3://x"',
    f'type = "sql"\nuri = "{SECRET}"\nwarehouse = "s3://x"',
    f'type = "sql"\nuri = "env:PLANTED_URI"\nwarehouse = "s3://x"\npassword = "{SECRET}"',
    f'type = "rest"\nuri = "http://user:{SECRET}@127.0.0.1:9"',
    f'type = "rest"\nuri = "http://127.0.0.1:9"\ntoken = "{SECRET}"\ns3.secret-access-key = "{SECRET}"',
    f'type = "rest"\nuri = "http://127.0.0.1:9"\ncredential = "id:{SECRET}"',
    f'type = "{SECRET}"\nuri = "x"',
    f'type = "rest"\nuri = ["{SECRET}"]',
    f'type = "rest"\nuri = "x"\ns3.secret-access-key = ["{SECRET}"]',
    f'type = "rest"\nuri = "x"\ntoken = "{SECRET}',
]


@pytest.mark.parametrize("text", CATALOGS)
def test_what_a_settings_file_holds_for_a_catalog_is_shown_nowhere(
    watch: Watch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    monkeypatch.setenv("PLANTED_URI", f"postgresql://user:{SECRET}@127.0.0.1:9/x")
    file = tmp_path / config.FILE_NAME
    file.write_text(f'store_id = "x"\n[catalogs.central]\n{text}\n')
    watch.see("a settings file")

    def used() -> Any:
        settings = config.load(file)
        watch.see(settings, settings.catalogs["central"])
        catalog = configured("central", settings.catalogs["central"], namespace="events")
        watch.see(catalog)
        return loaded(catalog, "orders")

    watch.attempt(used)


@pytest.mark.parametrize(
    "text",
    [
        f'[spark.settings]\n"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"\n"spark.x" = 5',
        f'[spark]\nsettings = "{SECRET}"',
        f'[spark]\nmaster = ["{SECRET}"]',
        f'[spark.settings]\n"spark.hadoop.fs.s3a.secret.key" = "{SECRET}"',
        f'[flush]\nrows_max = "{SECRET}"',
    ],
)
def test_what_a_settings_file_holds_for_spark_is_shown_nowhere(watch: Watch, tmp_path: Path, text: str) -> None:
    file = tmp_path / config.FILE_NAME
    file.write_text(f'store_id = "x"\n{text}\n')
    watch.see("a settings file")
    watch.attempt(lambda: config.load(file))


# ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_hubs_tokens_are_shown_nowhere_but_where_they_are_made(watch: Watch, shop: Store) -> None:
    _, secret = add_token(shop, "edge", datasets=["orders"], any_origin=True, rights=["capture"])
    hub = Hub(shop.engine, shop.spool)
    asked = []

    async def ask() -> None:
        transport = httpx.ASGITransport(build_app(hub))
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            for token in (secret, f"{secret}x", SECRET):
                headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
                for path in ("/v1/datasets/orders/capture", "/v1/datasets/other/capture", "/v1/datasets/orders/chunks"):
                    for body in (b'[{"id":7}]', b"garbage"):
                        asked.append(await client.post(path, content=body, headers=headers))
                for path in ("/v1/ledger/edge", "/metrics", "/readyz", "/", "/nothing"):
                    asked.append(await client.get(path, headers=headers))

    asyncio.run(ask())
    hub.close()
    TRIED["operations with a planted secret"] += len(asked)
    for answer in asked:
        watch.see(answer.text, dict(answer.headers))
    watch.see(list_tokens(shop), shop.status())
    for words in (["token", "list"], ["token", "list", "--json"], ["token", "revoke", "edge"], ["status", "--json"]):
        watch.command(shop, *words)
    stored = (shop.path / "control.db").read_bytes() + (shop.path / "control.db-wal").read_bytes()
    assert secret.encode() not in stored
    assert [text for text in watch.shown if secret in text] == []
    assert {answer.status_code for answer in asked} >= {200, 401, 403}


# ── projections of an event log ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "target",
    [
        f"postgresql+psycopg://user:{SECRET}@127.0.0.1:9/x",
        f"postgresql+psycopg://user:{SECRET}@127.0.0.1:port/x",
        f"nothing://user:{SECRET}@host/x",
        f"mysql+nothing://user:{SECRET}@host/x",
        SECRET,
    ],
)
def test_the_password_of_a_projections_target_is_shown_nowhere(
    watch: Watch, shop: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, target: str
) -> None:
    with EventLog.open(tmp_path / "log", sync=False) as log:
        log.append([Event("s", {})])
    (tmp_path / "planted_projection.py").write_text(
        "from floodmark.eventlog import projection\n@projection('planted')\ndef planted(event, connection):\n    pass\n"
    )
    monkeypatch.chdir(tmp_path)
    code = watch.command(shop, "log", "project", "log", "planted_projection:planted", "--target", target)
    assert code == 1
    watch.see("a projection")


# ── processes that are started ───────────────────────────────────────────────────────────────────────────────────────


def test_a_jvm_is_not_started_with_secrets_on_its_command_line(watch: Watch, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every user of a machine sees the command lines of all its processes."""
    from pyspark import SparkContext, java_gateway

    from floodmark.lake import session

    started: list[list[str]] = []

    class Stopped(Exception):
        """No JVM here."""

    def start(command: list[str], **_: Any) -> None:
        started.append(command)
        raise Stopped

    monkeypatch.setattr(java_gateway, "Popen", start)
    monkeypatch.setattr(session, "ready_jars", lambda **_: [])
    monkeypatch.setattr(session, "archive_options", list)
    monkeypatch.setattr(session, "check_java", lambda: None)
    monkeypatch.setattr(SparkContext, "_gateway", None)
    monkeypatch.setattr("pyspark.sql.SparkSession.getActiveSession", lambda: None)
    settings = {
        "spark.driver.memory": "2g",
        "spark.driver.extraClassPath": "/drivers/postgresql.jar",
        "spark.hadoop.fs.s3a.secret.key": SECRET,
        "spark.sql.catalog.central.uri": f"jdbc:postgresql://user:{SECRET}@host/x",
        "spark.ssl.keyPassword": SECRET,
        "spark.driver.password": SECRET,
    }
    with pytest.raises(Stopped):
        session.start_session(master="local[1]", settings=settings)
    (command,) = started
    watch.see(*command)
    assert "spark.driver.memory=2g" in command
    assert "spark.driver.extraClassPath=/drivers/postgresql.jar" in command
    watch.see("no JVM")
