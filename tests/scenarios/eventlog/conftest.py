"""Replicas, unions and fault points for the event log's tests."""

import pytest
from replicas import Replica, SteppedClock

from floodmark import faults
from postgres import postgres_server  # noqa: F401 - a fixture


@pytest.fixture
def clock():
    return SteppedClock()


@pytest.fixture
def replica(tmp_path, clock):
    made = []

    def make(name="A"):
        made.append(Replica(tmp_path / name, clock))
        return made[-1]

    yield make
    for one in made:
        one.log.close()


@pytest.fixture
def forked(replica):
    """A and B share `opened`; then each writes to stream `s` without the other, and both get both."""
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    a.append("from-A")
    b.append("from-B")
    a.pull(b)
    b.pull(a)
    return a, b


@pytest.fixture(autouse=True)
def _no_faults_left():
    yield
    faults.disarm_all()


@pytest.fixture(autouse=True)
def _no_fsync(monkeypatch, request):
    """A crash of a process loses nothing that was written; what a power cut takes is shown by its own tests."""
    if "real_fsync" not in request.fixturenames:
        monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def real_fsync():
    """For the tests that watch what is synced, and when."""
