"""Replicas without git: unions copy files, as a merge would."""

import shutil
from datetime import UTC, datetime, timedelta

from floodmark.eventlog import Event, EventLog


class SteppedClock:
    """Moves one millisecond at each look, so that time stamps never tie by accident."""

    def __init__(self, start=datetime(2026, 1, 1, tzinfo=UTC)):
        self.at = start

    def now(self):
        self.at += timedelta(milliseconds=1)
        return self.at

    def monotonic_seconds(self):
        return self.at.timestamp()

    def sleep(self, seconds):
        self.at += timedelta(seconds=seconds)


class Replica:
    """One working tree, without git: unions copy files, as a merge would."""

    def __init__(self, path, clock):
        self.path = path
        self.clock = clock
        self.log = None
        self.reopen()

    def reopen(self, **options):
        if self.log is not None:
            self.log.close()
        self.log = EventLog.open(self.path, sync=False, clock=self.clock, lock_wait_seconds_max=0, **options)
        return self.log

    def append(self, *texts, stream="s", expected=None):
        return self.log.append([Event(stream, {"text": text}) for text in texts], expected)

    def pull(self, other):
        for file in (other.path / "events").glob("*.jsonl"):
            if not (self.path / "events" / file.name).exists():
                shutil.copy(file, self.path / "events" / file.name)
        self.log.refresh()

    def texts(self, stream="s"):
        return [event.data["text"] for event in self.log.read_stream(stream)]

    def file(self, transaction_id):
        return self.path / "events" / f"{transaction_id}.jsonl"


def merged(fork):
    """A resolver that says what it saw."""
    return [
        Event(stream, {"text": "+".join(e.data["text"] for b in fork.branches for e in b.on(stream))})
        for stream in fork.streams
    ]
