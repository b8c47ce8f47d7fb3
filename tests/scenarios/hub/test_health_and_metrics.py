"""What a hub says about itself."""

from __future__ import annotations

import asyncio
import base64
import re
import subprocess
import sys
import threading

import httpx
from answers import problem

from engines import set_spool
from floodmark import faults
from floodmark.errors import Retryable
from floodmark.hub.access import add_token
from sending import Sender


def test_a_hub_that_serves_is_alive_and_ready(hub):
    assert hub.get("/healthz").json() == {"status": "alive"}
    assert hub.get("/readyz").json() == {"status": "ready"}


def test_a_hub_with_a_full_spool_is_alive_and_not_ready(hub, store, clock):
    hub.capture(b'[{"id":1}]')
    set_spool(store, backlog_bytes_max=1)
    clock.advance(5)
    content = problem(hub.get("/readyz"), 503, "SpoolFull")
    assert "events" not in str(content)
    assert hub.get("/healthz").status_code == 200


def test_a_hub_without_its_control_database_is_alive_and_not_ready(hub, store, monkeypatch):
    def away(*_, **__):
        raise Retryable(f"{store.path} is locked")

    monkeypatch.setattr(type(store.engine.database), "read", away)
    problem(hub.get("/readyz"), 503, "Busy")
    assert hub.get("/healthz").status_code == 200


def test_metrics_stay_small_however_many_stores_send(hub, store, monkeypatch):
    monkeypatch.setattr("floodmark.metrics.SERIES_MAX", 3)
    for number in range(8):
        sender = Sender(origin=f"edge-{number}")
        sender.add(1 + (number == 7))
        assert hub.send(sender.chunk(0, 2)).status_code == 200
        store.add_dataset(f"more{number}")
    text = hub.get("/metrics").text
    found = re.findall(r'^floodmark_ledger_rows\{dataset="(.*)",origin="(.*)"\} (.*)$', text, re.MULTILINE)
    assert len(found) == 4
    assert ("events", "edge-7", "2.0") in found, "those that send most are named"
    assert ("", "", "5.0") in found, "and all others together"
    assert len(re.findall(r"^floodmark_dataset_rows\{", text, re.MULTILINE)) == 3


def test_health_is_answered_while_chunks_are_stored(hub):
    """The event loop stays free: everything that waits or computes runs in threads."""
    sender = Sender()
    sender.add(3)
    chunk = sender.chunk(0, 3)
    reached, go = threading.Event(), threading.Event()

    def hold() -> None:
        reached.set()
        assert go.wait(30)

    faults.arm("segment.written", hold)

    async def exchange() -> tuple[int, int]:
        transport = httpx.ASGITransport(hub.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
            sending = asyncio.create_task(client.post(chunk.path, content=chunk.body, headers=chunk.headers()))
            assert await asyncio.to_thread(reached.wait, 30)
            health = await client.get("/healthz")
            assert not sending.done()
            go.set()
            return health.status_code, (await sending).status_code

    assert asyncio.run(exchange()) == (200, 200)


def test_metrics_count_requests_and_rows_and_read_the_store(hub, store):
    sender = Sender()
    sender.add(10)
    hub.send(sender.chunk(0, 10))
    hub.send(sender.chunk(0, 10))
    hub.send(sender.chunk(20, 30))
    hub.capture(b'[{"id":1},{"id":2}]')
    response = hub.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain")
    found = dict(re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", response.text, re.MULTILINE))
    assert float(found['floodmark_hub_requests_total{route="chunks",status="200"}']) == 2
    assert float(found['floodmark_hub_requests_total{route="chunks",status="409"}']) == 1
    assert float(found['floodmark_hub_rows_total{dataset="events",route="chunks"}']) == 10
    assert float(found['floodmark_hub_rows_total{dataset="events",route="capture"}']) == 2
    assert float(found['floodmark_spool_segment_rows{dataset="events"}']) == 10
    assert float(found['floodmark_spool_bytes{dataset="events"}']) > 0
    assert float(found['floodmark_ledger_rows{dataset="events",origin="edge-1"}']) == 10
    assert float(found["floodmark_spool_bytes_max"]) == store.settings.spool.backlog_bytes_max


def test_every_metric_stands_in_the_reference(hub):
    from pathlib import Path

    hub.capture(b'[{"id":1}]')
    names = set(re.findall(r"^# TYPE (\w+)", hub.get("/metrics").text, re.MULTILINE))
    page = (Path(__file__).parents[3] / "docs/reference/http.md").read_text(encoding="utf-8")
    assert [name for name in sorted(names) if f"`{name}`" not in page and not name.endswith("_created")] == []


def test_a_hub_shows_the_dashboard_to_this_machine_and_to_tokens_with_the_right(hub, store, clock):
    hub.capture(b'[{"id":1}]')
    response = hub.get("/")
    assert response.headers["content-type"].startswith("text/html")
    assert "events" in response.text
    _, viewer = add_token(store, "viewer", rights=["dashboard"])
    _, sender = add_token(store, "sender", any_origin=True, any_dataset=True)
    clock.advance(2)
    hub.client = ("10.0.0.9", 5)
    refused = hub.get("/")
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert "events" not in refused.text
    assert str(store.path) not in refused.text
    assert hub.get("/", Authorization=f"Bearer {sender}").status_code == 403
    assert hub.get("/", Authorization=f"Bearer {viewer}").status_code == 200


def test_a_login_of_a_browser_sends_no_rows(hub, store, clock):
    """A browser sends it with requests that other sites make, too."""
    _, sender = add_token(store, "sender", rights=["capture"], any_dataset=True)
    clock.advance(2)
    login = base64.b64encode(f":{sender}".encode()).decode()
    assert hub.capture(b'[{"id":1}]', Authorization=f"Basic {login}").status_code == 401
    assert hub.capture(b'[{"id":1}]', Authorization=f"Bearer {sender}").status_code == 200


def test_a_hub_loads_neither_spark_nor_a_jvm():
    code = "import sys, floodmark.hub.app, floodmark.hub.serve; print('pyspark' in sys.modules, 'py4j' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
