"""The event log: a history that lives in git and merges as a union of files. Needs neither Spark nor a store."""

from floodmark.eventlog.forks import Branch, Fork, IdentityConflict, StreamFork
from floodmark.eventlog.fsck import FsckReport, Problem
from floodmark.eventlog.log import Appended, EventLog
from floodmark.eventlog.reading import Filter
from floodmark.eventlog.reconcile import ReconcileReport, Unresolvable
from floodmark.eventlog.status import Dangling, OpenFork, Status
from floodmark.eventlog.transactions import Event, RecordedEvent
from floodmark.eventlog.view import IntegrityFailure

__all__ = [
    "Appended",
    "Branch",
    "Dangling",
    "Event",
    "EventLog",
    "Filter",
    "Fork",
    "FsckReport",
    "IdentityConflict",
    "IntegrityFailure",
    "OpenFork",
    "Problem",
    "ReconcileReport",
    "RecordedEvent",
    "Status",
    "StreamFork",
    "Unresolvable",
]
