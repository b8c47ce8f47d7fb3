"""The pages of `run` on a store on the memory lake: everything but the sockets is real."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from floodmark.daemon.listen import Listener
from floodmark.delivery.kinds import KINDS
from floodmark.store import Store
from floodmark.testing import ManualClock
from scenarios.daemons import Places, Stepped
from scenarios.dashboards import Pages


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Places:
    made = Places()
    monkeypatch.setitem(KINDS, "test", made.kind)
    return made


@pytest.fixture
def pages(store: Store, clock: ManualClock, places: Places) -> Iterator[Pages]:
    store.add_dataset("m", schema={"n": "long"})
    run = Stepped(store, clock)
    listener = Listener(run.daemon, store, "127.0.0.1:0", warn=lambda text: None)
    yield Pages(run, listener, listener.app())
    listener.__exit__()
    run.daemon.ask_to_stop("the test is over")
    run.daemon.take(1)
    run.daemon.run()
