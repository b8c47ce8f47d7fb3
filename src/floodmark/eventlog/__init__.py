"""The event log: a history in git that merges as a union of files. Needs neither Spark nor a store."""

from floodmark.eventlog.checkpoints import Checkpoint, CheckpointFiles, leadership
from floodmark.eventlog.forks import Branch, Fork, IdentityConflict, StreamFork
from floodmark.eventlog.fsck import FsckReport, Problem
from floodmark.eventlog.log import EventLog
from floodmark.eventlog.projections import CatchUp, Projection, QuarantinedEvent, Runner, RunReport, projection
from floodmark.eventlog.reading import Filter
from floodmark.eventlog.reconcile import ReconcileReport, Unresolvable
from floodmark.eventlog.status import Dangling, OpenFork, Status
from floodmark.eventlog.targets import FileTarget, SqliteTarget, SqlTarget
from floodmark.eventlog.transactions import Event, RecordedEvent
from floodmark.eventlog.view import IntegrityFailure
from floodmark.eventlog.writer import Appended

__all__ = [
    "Appended",
    "Branch",
    "CatchUp",
    "Checkpoint",
    "CheckpointFiles",
    "Dangling",
    "Event",
    "EventLog",
    "FileTarget",
    "Filter",
    "Fork",
    "FsckReport",
    "IdentityConflict",
    "IntegrityFailure",
    "OpenFork",
    "Problem",
    "Projection",
    "QuarantinedEvent",
    "ReconcileReport",
    "RecordedEvent",
    "RunReport",
    "Runner",
    "SqlTarget",
    "SqliteTarget",
    "Status",
    "StreamFork",
    "Unresolvable",
    "leadership",
    "projection",
]
