"""A projection sink: passes rows in ingest order to a user's function, `package.module:function`.

Two promises, by the setting `transactional`:

- false: at least once. The function is called, then the parcel is acknowledged; after a crash in between, the same
  range is passed again with the same key. Its effect must be idempotent, or be stored under that key.
- true: exactly once. The function writes through the connection of the control database, in the transaction that
  acknowledges the parcel: after a crash both exist, or neither.

If the function raises, its channel stops and is retried later; nothing is skipped.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, NoReturn

from sqlalchemy import Connection, event
from sqlalchemy.exc import DBAPIError

from floodmark.control.database import is_serialization_failure
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import Delivered, Destination, Kind, Parcel, whole_number
from floodmark.delivery.outcomes import Holdings
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, Permanent, Retryable, reason_of
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True, slots=True)
class Delivery:
    """What a function can read about its batch."""

    dataset: str
    partition: str
    range: SequenceRange
    """The batch's sequence numbers. The same range always has the same rows."""
    key: str
    """The same key for every attempt of one delivery, and for no other."""
    connection: Connection | None
    """Of the transaction that acknowledges the batch, if the sink is transactional. The function must not commit it."""


@dataclass(frozen=True, slots=True)
class Function:
    """A user's function, and its signature."""

    path: str
    call: Callable[[pa.Table, Delivery], object]
    takes_delivery: bool

    @classmethod
    def load(cls, path: Any) -> Function:
        """Import `package.module:function`; `InvalidSetting` if that cannot be called with a batch."""
        found = _imported(path)
        if inspect.iscoroutinefunction(found):
            raise _unusable(path, "it is a coroutine function, and it would not be awaited")
        accepts = _acceptance(path, found)
        if accepts((None, None), {}):
            return cls(path, found, takes_delivery=True)
        if accepts((None,), {"delivery": None}):
            return cls(path, lambda batch, delivery: found(batch, delivery=delivery), takes_delivery=True)
        if accepts((None,), {}):
            return cls(path, lambda batch, _delivery: found(batch), takes_delivery=False)
        raise _unusable(path, "it takes neither (batch) nor (batch, delivery)")


def _imported(path: Any) -> Callable[..., object]:
    module, colon, name = path.partition(":") if isinstance(path, str) else ("", "", "")
    if not (module and colon and name):
        raise InvalidSetting(f"function is {path!r}.", hint='Write it as "package.module:function".')
    try:
        found: object = import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
    except Exception as error:  # importing runs the user's code: it may raise anything
        raise _unusable(path, f"{type(error).__name__}: {reason_of(error)}") from error
    if not callable(found):
        raise _unusable(path, f"it is a {type(found).__name__}")
    return found


def _acceptance(path: str, found: Callable[..., object]) -> Callable[[tuple[Any, ...], dict[str, Any]], bool]:
    try:
        signature = inspect.signature(found)
    except ValueError:  # some built-in functions have no signature
        return lambda positional, named: len(positional) == 1 and not named
    except TypeError as error:
        raise _unusable(path, str(error)) from error

    def accepts(positional: tuple[Any, ...], named: dict[str, Any]) -> bool:
        try:
            signature.bind(*positional, **named)
        except TypeError:
            return False
        return True

    return accepts


def _unusable(path: Any, reason: str) -> InvalidSetting:
    return InvalidSetting(
        f"The function {path!r} cannot be used: {reason}.",
        hint="It must be importable by every process that exports: installed, or on PYTHONPATH.",
    )


@dataclass(frozen=True, slots=True)
class ProjectionSink:
    """Calls a function with each parcel: at least once."""

    function: Function
    store_id: str

    def open(self) -> None:
        """Nothing to claim: the user owns the function and what it writes to."""

    def held(self, channel: Channel, *, after: int) -> Holdings:  # noqa: ARG002 - the contract's signature
        return Holdings()

    def deliver(self, parcel: Parcel) -> Delivered:
        self._call(parcel, None)
        return Delivered(parcel.rows.nbytes)

    def close(self) -> None:
        pass

    def _call(self, parcel: Parcel, connection: Connection | None) -> None:
        channel, span = parcel.channel, parcel.range
        key = f"{self.store_id}/{channel.sink}/{channel.dataset}/{channel.partition}/{span.after}-{span.through}"
        delivery = Delivery(channel.dataset, channel.partition, span, key, connection)
        try:
            self.function.call(parcel.rows, delivery)
        except (Permanent, Retryable):
            raise  # the function decides whether to retry
        except DBAPIError as error:
            if connection is not None and is_serialization_failure(error):
                raise  # the control database runs the whole transaction again
            raise self._failure(parcel, error) from error
        except Exception as error:
            raise self._failure(parcel, error) from error

    def _failure(self, parcel: Parcel, error: Exception) -> Retryable:
        channel = parcel.channel
        return Retryable(
            f"The function {self.function.path!r} failed on rows {parcel.range} of {channel.dataset!r} "
            f"({channel.partition}): {type(error).__name__}: {reason_of(error)}.",
            hint="Correct the function; the next export passes the same rows again.",
        )


@dataclass(frozen=True, slots=True)
class TransactionalProjectionSink(ProjectionSink):
    """Calls a function inside the transaction that acknowledges the parcel: exactly once."""

    def deliver_within(self, connection: Connection, parcel: Parcel) -> Delivered:
        with _no_commit(connection, self.function.path):
            self._call(parcel, connection)
        return Delivered(parcel.rows.nbytes)


@contextlib.contextmanager
def _no_commit(connection: Connection, path: str) -> Iterator[None]:
    """Refuse a COMMIT or ROLLBACK by the function: a partial effect could be acknowledged, or a complete one not."""
    refusals: list[Permanent] = []

    def refuse(_connection: Connection) -> NoReturn:
        refusals.append(
            Permanent(
                f"The function {path!r} tried to commit or roll back the transaction of the export.",
                hint="Leave commit and rollback to the export; use connection.begin_nested() for savepoints.",
            )
        )
        raise refusals[-1]

    for ending in ("commit", "rollback"):
        event.listen(connection, ending, refuse)
    try:
        yield
    finally:
        for ending in ("commit", "rollback"):
            event.remove(connection, ending, refuse)
        if refusals:
            connection.invalidate()  # SQLAlchemy assumes that the transaction has ended: only closing is safe
    if refusals:
        raise refusals[-1]  # also if the function has caught it


def _check(settings: dict[str, Any]) -> None:
    whole_number(settings, "chunk_rows")
    if type(settings["transactional"]) is not bool:
        raise InvalidSetting(f"transactional is {settings['transactional']!r}.", hint="It must be true or false.")
    function = Function.load(settings["function"])
    if settings["transactional"] and not function.takes_delivery:
        raise InvalidSetting(
            f"The function {function.path!r} takes no delivery, so it cannot use the transaction's connection.",
            hint="Write it as function(batch, delivery) and use delivery.connection, or leave transactional out.",
        )


def _connect(engine: Engine, channel: Channel, settings: Mapping[str, Any]) -> Destination:  # noqa: ARG001 - the contract's signature
    engine.settings.functions.check(settings["function"])  # again: the list may have changed since the sink was added
    kind = TransactionalProjectionSink if settings["transactional"] else ProjectionSink
    return kind(Function.load(settings["function"]), engine.store_id)


def _probe(engine: Engine, sink: Sink) -> str:
    engine.settings.functions.check(sink.settings["function"])
    Function.load(sink.settings["function"])
    return f"The function {sink.settings['function']} can be imported and called with a batch."


KIND = Kind(
    name="projection",
    defaults={"transactional": False, "chunk_rows": 10_000},
    required=("function",),
    check=_check,
    connect=_connect,
    probe=_probe,
    # Not the function: a corrected one applies immediately, to the same range that the old one failed on.
    pinned=("chunk_rows",),
)
