"""Which part of a store a sink delivers: datasets, partitions, and from which sequence number on. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Lag
from floodmark.schema import parse_partition_key
from floodmark.schema.partitions import value_text


@dataclass(frozen=True, slots=True)
class Scope:
    """The settings of a sink that select what it delivers."""

    datasets: tuple[str, ...] | None
    partitions: Mapping[str, Sequence[str | None]] | None
    starts: tuple[tuple[str, str | None, int], ...]

    @classmethod
    def of(cls, settings: Mapping[str, Any]) -> Scope:
        names = settings.get("datasets")
        return cls(
            None if names is None else tuple(names),
            settings.get("partitions"),
            tuple((dataset, partition, seq) for dataset, partition, seq in settings.get("start") or ()),
        )

    def takes(self, dataset: Dataset, partition: str) -> bool:
        """Whether the sink delivers a partition. The dataset must be partitioned by every column that is named."""
        if self.datasets is not None and dataset.name not in self.datasets:
            return False
        if self.partitions is None:
            return True
        by = dataset.partition_by
        values = dict(zip(by, parse_partition_key(by, partition, dataset.schema), strict=True))
        return all(
            name in values and (None if values[name] is None else value_text(name, values[name])) in wanted
            for name, wanted in self.partitions.items()
        )

    def missing(self, declared: Sequence[Dataset]) -> list[str]:
        """One sentence for each name in the settings that no dataset has: misspelt, or to be added later."""
        found = [
            f"There is no dataset {name!r}."
            for name in self.datasets or ()
            if not any(item.name == name for item in declared)
        ]
        for column in self.partitions or ():
            here = [item for item in declared if self.datasets is None or item.name in self.datasets]
            if self.datasets is None:
                if not any(column in item.partition_by for item in here):
                    found.append(f"No dataset is partitioned by {column!r}.")
            else:
                found += [
                    f"Dataset {item.name!r} is not partitioned by {column!r}."
                    for item in here
                    if column not in item.partition_by
                ]
        return found

    def warnings(self, declared: Sequence[Dataset], partitions: Mapping[str, Sequence[str]]) -> list[str]:
        """The same, and a sentence if the sink selects none of the existing partitions."""
        found = self.missing(declared)
        asked = [item for item in declared if self.datasets is None or item.name in self.datasets]
        there = [(item, key) for item in asked for key in partitions.get(item.name, ())]
        if there and not found and not any(self.takes(item, key) for item, key in there):
            wanted = ", ".join(f"{name}={value}" for name, some in (self.partitions or {}).items() for value in some)
            found.append(f"No existing partition has {wanted}.")
        return found

    def start(self, channel: Channel) -> int:
        """Where the channel begins: rows up to this number are not delivered."""
        found = [
            seq
            for dataset, partition, seq in self.starts
            if dataset == channel.dataset and partition in (None, channel.partition)
        ]
        return max(found, default=0)

    def has_news(self, lag: Lag) -> bool:
        """Whether there is anything to deliver: a channel that was never recorded lags only behind its start."""
        return lag.open or lag.mark is not None or lag.last_seq > self.start(lag.channel)
