"""Two sealers at the same lines: one registers them, the other throws its work away, and no line is passed over."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from spooling import ids_of, landing_of, numbered, writers

from floodmark import faults
from floodmark.spool import landing
from floodmark.store import Store
from floodmark.testing import kill_store

POINTS = [point for point in faults.POINTS if point.partition(".")[0] in {"segment", "seal"}]


@pytest.fixture(autouse=True)
def _events(store: Store) -> None:
    store.add_dataset("events", schema={"id": "long"})


@pytest.mark.parametrize("writer_lives", [True, False])
@pytest.mark.parametrize("point", POINTS)
def test_another_sealer_at_any_instant_registers_the_same_lines_once(
    store: Store, reopen: Callable[[], Store], point: str, writer_lives: bool
) -> None:
    """I6, L5: the second seals everything while the first stands still at a point; both finish."""
    writer, first, second = reopen(), reopen(), reopen()
    writer.capture("events", [*numbered(1, 2), {"id": "bad"}])
    if not writer_lives:
        kill_store(writer)
    faults.arm(point, faults.nth_time(1, lambda: second.seal("events")))
    first.seal("events")
    faults.disarm_all()
    if writer_lives:
        writer.capture("events", numbered(3))
    store.flush("events")
    assert ids_of(store) == ([1, 2, 3] if writer_lives else [1, 2])
    assert len(store.quarantine.entries("events")) == 1
    assert len(landing_of(store)) == (1 if writer_lives else 0)


@pytest.mark.parametrize("point", POINTS)
def test_a_whole_flush_by_another_in_between_changes_nothing(
    store: Store, reopen: Callable[[], Store], point: str
) -> None:
    """I6, I7: the lines are committed and the segment's file is gone before the first sealer goes on."""
    store.capture("events", numbered(1, 2))
    kill_store(store)
    first, second = reopen(), reopen()
    faults.arm(point, faults.nth_time(1, lambda: second.flush("events")))
    first.seal("events")
    faults.disarm_all()
    first.flush("events")
    assert ids_of(first) == [1, 2]


def test_a_sealer_that_saw_more_lines_and_lost_does_not_remove_them(store: Store, reopen: Callable[[], Store]) -> None:
    """I6, L5: one sealer takes the first line; before it registers, a second line comes, the writer closes, and another
    sealer takes both. The first wins. The other may not believe that both are sealed, and remove the file.
    """
    writer, short, long = reopen(), reopen(), reopen()
    writer.capture("events", numbered(1))
    short_has_written, long_has_written, short_is_done = threading.Event(), threading.Event(), threading.Event()

    def stand_still() -> None:
        if threading.current_thread().name == "short":
            short_has_written.set()
            assert long_has_written.wait(30)
        elif not short_is_done.is_set():
            long_has_written.set()
            assert short_is_done.wait(30)

    faults.arm("segment.written", stand_still)

    def seal_short() -> None:
        short.seal("events")
        short_is_done.set()

    threads = [threading.Thread(target=seal_short, name="short")]
    threads[0].start()
    assert short_has_written.wait(30)
    writer.capture("events", numbered(2))
    kill_store(writer)
    threads.append(threading.Thread(target=lambda: long.seal("events"), name="long"))
    threads[1].start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive()
    faults.disarm_all()
    store.flush("events")
    assert ids_of(store) == [1, 2]
    assert landing_of(store) == []


def test_many_threads_seal_while_rows_come(store: Store, reopen: Callable[[], Store]) -> None:
    """I6: four sealers and two writers at once: each row once."""
    sealers = [reopen() for _ in range(4)]
    done = threading.Event()

    def seal(sealer: Store) -> None:
        while not done.is_set():
            sealer.seal("events")

    def capture(number: int) -> None:
        writer = reopen()
        for id in range(number * 100, number * 100 + 20):
            writer.capture("events", numbered(id))
        writer.spool.close()

    with ThreadPoolExecutor(6) as pool:
        sealing = [pool.submit(seal, sealer) for sealer in sealers]
        writing = [pool.submit(capture, number) for number in range(2)]
        for item in writing:
            item.result()
        done.set()
        for item in sealing:
            item.result()
    store.flush("events")
    assert ids_of(store) == [number * 100 + id for number in range(2) for id in range(20)]
    assert landing_of(store) == []


def test_a_second_process_seals_the_same_lines(store: Store, reopen: Callable[[], Store]) -> None:
    """I6: two real processes race for every batch; what both count as sealed is what there was."""
    writer = reopen()
    with writers(store.path) as [other]:
        mine = theirs = 0
        for start in range(0, 100, 10):
            for id in range(start, start + 10):
                writer.capture("events", numbered(id))
            other.tell("seal", 2)
            mine += store.seal("events").rows
            theirs += other.answer()
    assert mine + theirs == 100
    store.flush("events")
    assert ids_of(store) == list(range(100))


def test_a_file_removed_by_another_sealer_hides_no_other_file(
    store: Store, reopen: Callable[[], Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file that vanishes while the directory is listed is that file's affair: the others are still sealed."""
    writer, other = reopen(), reopen()
    writer.capture("events", numbered(1))
    other.capture("events", numbered(2))
    kill_store(other)
    gone = landing_of(store)[-1]
    real = landing.os.scandir

    class Vanishing:
        def __init__(self, entry: object) -> None:
            self.path = entry.path  # type: ignore[attr-defined]
            self.name = entry.name  # type: ignore[attr-defined]
            self._entry = entry

        def is_file(self, **how: bool) -> bool:
            return self._entry.is_file(**how)  # type: ignore[attr-defined]

        def stat(self) -> object:
            if self.path == str(gone):
                raise FileNotFoundError(self.path)
            return self._entry.stat()  # type: ignore[attr-defined]

    class Listing:
        def __init__(self, folder: object) -> None:
            self._real = real(folder)

        def __enter__(self) -> object:
            return (Vanishing(entry) for entry in self._real)

        def __exit__(self, *_: object) -> None:
            self._real.close()

        def __iter__(self) -> object:
            return self.__enter__()

    monkeypatch.setattr(landing.os, "scandir", Listing)
    assert store.seal("events").rows == 1
    monkeypatch.undo()
    store.flush("events")
    assert ids_of(store) == [1, 2]
