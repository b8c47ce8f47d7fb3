"""What `floodmark run` serves: health, metrics and who may see them."""

from __future__ import annotations

import base64
import re
import socket
from datetime import timedelta
from pathlib import Path

import pytest

from floodmark import meters
from floodmark.daemon.listen import Listener, parse_address
from floodmark.delivery.outcomes import Busy
from floodmark.errors import InvalidSetting, Permanent, Retryable
from floodmark.hub.access import add_token, revoke_token
from scenarios.daemons import Places
from scenarios.dashboards import Pages

ROOT = Path(__file__).parents[3]


def figures(pages: Pages) -> dict[str, float]:
    text = pages.fresh("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^(\w+(?:\{[^}]*\})?) (\S+)$", text, re.MULTILINE)}


# ── health ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_daemon_whose_loop_comes_round_is_alive_and_ready(pages: Pages) -> None:
    pages.run.settle()
    assert pages.get("/healthz").json() == {"status": "alive"}
    assert pages.get("/readyz").json() == {"status": "ready"}


def test_a_daemon_whose_loop_hangs_is_not_alive(pages: Pages) -> None:
    pages.run.settle()
    pages.run.clock.advance(121)
    assert pages.get("/healthz").status_code == 503


def test_a_daemon_that_cannot_read_its_store_is_alive_and_not_ready(pages: Pages, monkeypatch) -> None:
    def away(*_: object) -> None:
        raise Retryable("The control database is locked.")

    monkeypatch.setattr("floodmark.daemon.loop.read_store", away)
    pages.run.daemon.step()
    assert pages.get("/readyz").status_code == 503
    assert pages.get("/healthz").status_code == 200


# ── metrics ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_metrics_say_what_is_committed_and_delivered_and_since_when(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1, 2, 3)
    found = figures(pages)
    assert found['floodmark_dataset_rows{dataset="m"}'] == 3
    assert found['floodmark_flush_rows_total{dataset="m"}'] == 3
    assert found['floodmark_flush_seconds_count{dataset="m"}'] == 1
    assert found['floodmark_export_rows_total{sink="out"}'] == 3
    assert found['floodmark_export_chunks_total{sink="out"}'] == 2
    assert found['floodmark_sink_lag_rows{dataset="m",sink="out"}'] == 0
    assert found['floodmark_sink_lag_seconds{dataset="m",sink="out"}'] == 0
    assert found['floodmark_seconds_since_commit{dataset="m"}'] == 42, (
        "31 of them passed behind it, and 11 for the read"
    )
    assert found['floodmark_seconds_since_delivery{dataset="m",sink="out"}'] == 42
    assert found['floodmark_table_files{dataset="m"}'] == 1
    assert found['floodmark_table_snapshots{dataset="m"}'] == 1
    assert found["floodmark_control_bytes"] > 0
    assert found["process_resident_memory_bytes"] > 0


def test_metrics_say_how_far_a_sink_is_behind_in_rows_and_seconds_and_when_it_is_retried(
    pages: Pages, places: Places
) -> None:
    def away() -> None:
        raise Busy("The place is closed.", retry_after_seconds=600)

    places.on_deliver["a"] = away
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1, 2, 3)
    found = figures(pages)
    assert found['floodmark_sink_lag_rows{dataset="m",sink="out"}'] == 3
    assert found['floodmark_sink_lag_seconds{dataset="m",sink="out"}'] == 42
    assert found['floodmark_sink_failing{sink="out"}'] == 1
    assert found['floodmark_sink_blocked{sink="out"}'] == 0
    assert 500 < found['floodmark_sink_backoff_seconds{sink="out"}'] < 600
    assert found['floodmark_work_failures_total{subject="out",work="export"}'] >= 1
    assert 'floodmark_seconds_since_delivery{dataset="m",sink="out"}' not in found, "there was none"


def test_metrics_say_what_waits_and_for_how_long(pages: Pages) -> None:
    pages.capture(1, 2)
    pages.store.seal("m")
    pages.run.clock.advance(100)
    found = figures(pages)
    assert found['floodmark_spool_segment_rows{dataset="m"}'] == 2
    assert found['floodmark_spool_oldest_seconds{dataset="m"}'] == 111


def test_rows_that_nobody_commits_grow_old_also_if_their_writer_never_stops(pages: Pages, monkeypatch) -> None:
    """A single look knows only the last write of a landing log. This process looks again and again."""
    import floodmark.status as module

    real, clock = module._landed, pages.run.clock

    def landed(spool: Path) -> dict[str, dict[str, tuple[int, float]]]:
        """As if the last write was just now."""
        found = real(spool)
        return {name: {f: (size, clock.now().timestamp()) for f, (size, _) in of.items()} for name, of in found.items()}

    monkeypatch.setattr(module, "_landed", landed)
    for number in range(3):
        pages.capture(number)
        found = figures(pages)
    assert found['floodmark_spool_oldest_seconds{dataset="m"}'] == 22
    pages.store.flush("m")
    pages.capture(9)
    assert figures(pages)['floodmark_spool_oldest_seconds{dataset="m"}'] == 0


def test_metrics_say_which_task_fails_and_how_often(pages: Pages) -> None:
    from floodmark.control import reports

    pages.store.add_sink("out", "test", url="a")
    for _ in range(2):
        pages.store.engine.database.transact(
            lambda c: reports.record(c, "audit", "out", message="no", failed=True, now=pages.run.clock.now())
        )
    found = figures(pages)
    assert found['floodmark_task_failures{subject="out",task="audit"}'] == 2
    assert found['floodmark_task_age_seconds{subject="out",task="audit"}'] == 11


def test_a_block_that_another_commit_came_before_is_counted(pages: Pages, monkeypatch) -> None:
    from floodmark.commit import flush as module

    real, lost = module.commit_block, iter([True])

    def commit(*arguments, **options):
        decided = real(*arguments, **options)
        return None if next(lost, False) else decided

    monkeypatch.setattr(module, "commit_block", commit)
    before = meters.counted(meters.COMMIT_CONFLICTS).get("m", 0)
    pages.deliver(1)
    assert figures(pages)['floodmark_commit_conflicts_total{dataset="m"}'] == before + 1


def test_every_metric_of_run_stands_in_the_reference(pages: Pages) -> None:
    pages.store.add_sink("out", "test", url="a")
    pages.deliver(1)
    names = set(re.findall(r"^# TYPE (\w+)", pages.fresh("/metrics").text, re.MULTILINE))
    page = (ROOT / "docs/reference/http.md").read_text(encoding="utf-8")
    ours = [name for name in sorted(names) if name.startswith("floodmark_") and not name.endswith("_created")]
    assert len(ours) > 30
    assert [name for name in ours if f"`{name}`" not in page] == []


# ── who may look ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("path", ["/", "/metrics", "/datasets/m", "/quarantine", "/series.json?dataset=m"])
def test_another_machine_needs_a_token_with_the_right(pages: Pages, path: str) -> None:
    right = "metrics" if path == "/metrics" else "dashboard"
    _, secret = add_token(pages.store, "viewer", rights=[right], expires=timedelta(days=1))
    _, other = add_token(pages.store, "other", rights=["dashboard" if right == "metrics" else "metrics"])
    pages.client = ("10.0.0.9", 5)

    refused = pages.get(path)
    assert refused.status_code == 401
    assert refused.headers["www-authenticate"].startswith("Basic ")
    assert "m" not in re.findall(r'"dataset[^"]*"', refused.text)
    assert pages.get(path, Authorization=f"Bearer {other}").status_code == 403
    assert pages.get(path, Authorization=f"Bearer {secret}").status_code == 200
    login = base64.b64encode(f"anybody:{secret}".encode()).decode()
    assert pages.get(path, Authorization=f"Basic {login}").status_code == 200
    revoke_token(pages.store, "viewer")
    pages.run.clock.advance(2)
    assert pages.get(path, Authorization=f"Bearer {secret}").status_code == 401


@pytest.mark.parametrize("login", ["Basic", "Basic !!!", "Basic " + "A" * 5000, "Basic /w==", "Basic Og==", "Bearer"])
def test_a_malformed_login_is_no_login(pages: Pages, login: str) -> None:
    add_token(pages.store, "viewer", rights=["dashboard"])
    pages.client = ("10.0.0.9", 5)
    assert pages.get("/", Authorization=login).status_code == 401


def test_health_needs_no_token(pages: Pages) -> None:
    add_token(pages.store, "viewer", rights=["dashboard"])
    pages.client = ("10.0.0.9", 5)
    pages.run.settle()
    assert (pages.get("/healthz").status_code, pages.get("/readyz").status_code) == (200, 200)


def test_a_proxy_on_this_machine_is_not_this_machine(pages: Pages) -> None:
    add_token(pages.store, "viewer", rights=["dashboard"])
    assert pages.get("/").status_code == 200
    assert pages.get("/", X_Forwarded_For="10.0.0.9").status_code == 401


def test_a_page_under_a_strange_name_is_refused(pages: Pages) -> None:
    """A web page that lets its own name point to this machine must not read the dashboard."""
    assert pages.get("/", Host="evil.example").status_code == 421


def test_other_machines_are_not_let_in_before_there_is_a_token(pages: Pages) -> None:
    with pytest.raises(Permanent, match="no valid token"):
        Listener(pages.run.daemon, pages.store, "0.0.0.0:0", warn=lambda text: None)
    add_token(pages.store, "viewer", rights=["dashboard"])
    warnings: list[str] = []
    listener = Listener(pages.run.daemon, pages.store, "0.0.0.0:0", warn=warnings.append)
    listener.__exit__()
    assert "without TLS" in warnings[0]


def test_an_address_that_is_taken_is_named(pages: Pages) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InvalidSetting, match="cannot listen on 127"):
            Listener(pages.run.daemon, pages.store, f"127.0.0.1:{taken.getsockname()[1]}", warn=lambda text: None)


@pytest.mark.parametrize(
    ("text", "address"),
    [("127.0.0.1:1", ("127.0.0.1", 1)), ("[::1]:80", ("::1", 80)), ("8765", ("127.0.0.1", 8765)), ("h:0", ("h", 0))],
)
def test_an_address_has_a_host_and_a_port(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize("text", ["", "localhost", "localhost:", ":8765", "host:99999", "host:-1", "host:٣"])
def test_what_is_no_address_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InvalidSetting, match="is not an address"):
        parse_address(text)
