"""A forward sink delivers to the hub that it met first, and to nothing else that happens to answer at its address."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.delivery.servers import Answer, ScriptedServer
from scenarios.destinations import DATASET, SINK
from scenarios.hubs import HubPlace, forget_deliveries


@pytest.fixture
def hub(store: Store, tmp_path: Path, lake: MemoryLake) -> Iterator[HubPlace]:
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    made = HubPlace(tmp_path, lake)
    made.add(store)
    yield made
    made.close()


def capture(store: Store, *numbers: int) -> None:
    store.capture(DATASET, [{"n": n, "source": "a"} for n in numbers])
    store.flush(DATASET)


IMPOSTORS = {
    "a page": Answer(200, "<html>welcome</html>", {"Content-Type": "text/html"}),
    "nothing": Answer(204),
    "other JSON": Answer(200, {"ok": True}),
    "an older hub's form": Answer(200, {"stored": 3, "ledger": {"through": 6, "rows": 6, "checksum": "0" * 16}}),
}


@pytest.mark.parametrize("said", IMPOSTORS.values(), ids=IMPOSTORS)
@pytest.mark.parametrize("restarted", [False, True], ids=["the same process", "a new process"])
def test_a_server_in_the_hubs_place_that_answers_200_to_everything_takes_no_row(
    store: Store, hub: HubPlace, reopen, said: Answer, restarted: bool
) -> None:
    """D8. The watermark would pass rows that nobody has, and retention would then remove them."""
    capture(store, 1, 2, 3)
    store.export(SINK)
    hub.stop()
    capture(store, 4, 5, 6)
    exporting = reopen() if restarted else store
    with ScriptedServer(port=hub.port) as impostor:
        impostor.script = lambda _: said
        report = exporting.export(SINK)
        audited = exporting.audit(SINK)
        kept = exporting.retain(DATASET, keep_rows=1)

    assert report.rows == 0
    assert "hub" in (report.blocked or "")
    assert "Nothing" in (report.blocked or "")
    assert exporting.watermark(SINK, DATASET) == 3
    assert exporting.sinks()[0].state == "blocked"
    assert (audited.asked, audited.failed) == (False, True)
    assert "did not report what it has" in (audited.channels[0].note or "")
    assert [held.sink for held in kept.held_back_by] == [SINK]
    hub.start()
    assert exporting.export(SINK).rows == 3
    assert hub.rows() == {"source=a": [1, 2, 3, 4, 5, 6]}
    assert exporting.audit(SINK).asked


def test_a_first_contact_with_something_that_is_no_hub_delivers_nothing(store: Store) -> None:
    """D8. The sink says what to do if the server is meant to be no hub."""
    store.add_dataset(DATASET, schema={"n": "long"}, partition_by=["source"])
    capture(store, 1, 2)
    with ScriptedServer() as server:
        store.add_sink(SINK, "forward", url=server.url)
        blocked = store.export(SINK).blocked
        assert "There is no hub at" in (blocked or "")
        assert "accept=status" in (blocked or "")
        assert server.chunks_seen() == []
        store.change_sink(SINK, accept="status")
        assert store.export(SINK).rows == 2
        assert len(server.chunks_seen()) == 1


def test_another_hub_at_the_address_is_refused_also_when_the_records_of_deliveries_are_lost(
    store: Store, hub: HubPlace, reopen, tmp_path: Path, lake: MemoryLake
) -> None:
    """D8. An empty hub would be sent everything, and the first one would miss what comes later."""
    capture(store, 1, 2, 3)
    store.export(SINK)
    forget_deliveries(store)
    hub.stop()
    other = HubPlace.__new__(HubPlace)
    other.root, other.lake, other.port = tmp_path / "other", MemoryLake(), hub.port
    from floodmark.store import init

    with init(other.root, lake=other.lake) as made:
        made.add_dataset(DATASET, partition_by=["source"])
    other.start()
    again = reopen()
    capture(again, 4)
    blocked = again.export(SINK).blocked
    assert "is not the hub of this sink" in (blocked or "")
    assert other.rows() == {}
    other.stop()
    hub.start()
    assert again.export(SINK).blocked is None
    assert hub.rows() == {"source=a": [1, 2, 3, 4]}


def test_a_hub_that_cannot_be_reached_is_not_said_to_hold_every_row(store: Store, hub: HubPlace) -> None:
    capture(store, 1, 2, 3)
    store.export(SINK)
    assert store.audit(SINK).asked
    hub.stop()
    report = store.audit(SINK)
    assert report.sound
    assert (report.asked, report.failed) == (False, True)
    hub.start()


def test_a_sink_of_before_the_setting_asks_for_a_hub(store: Store, hub: HubPlace, reopen) -> None:
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("UPDATE sinks SET settings = json_remove(settings, '$.accept'), hub = NULL")
    )
    again = reopen()
    capture(again, 1)
    assert again.export(SINK).rows == 1
    found = again.engine.database.read(lambda c: c.exec_driver_sql("SELECT hub FROM sinks").scalar_one())
    assert found == hub.store.store_id
