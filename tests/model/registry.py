"""All models, in the order of a row's way: captured, committed, delivered, and what happens to it afterwards."""

from __future__ import annotations

from .backfill import BackfillModel, SourceStepsModel
from .checker import Model
from .commit import BarrierModel, CommitModel, RestoreAndExpiryModel, RestoreModel, UpkeepModel
from .delivery import BlobModel, KeyModel, LostRecordsModel
from .forwarding import AddressModel, CircleModel
from .hub import DivergenceModel, HubModel
from .partitions import PartitionsModel
from .power_loss import PowerLossModel
from .rebuild import RebuildModel
from .removal import LaterSinkModel, PurgedSegmentModel, RemovalModel
from .sealing import SealingModel
from .settlement import SettlementModel
from .table_sink import TableSinkModel

MODELS: tuple[type[Model], ...] = (
    SealingModel,
    BackfillModel,
    SourceStepsModel,
    CommitModel,
    UpkeepModel,
    RestoreModel,
    RestoreAndExpiryModel,
    BarrierModel,
    PowerLossModel,
    SettlementModel,
    BlobModel,
    LostRecordsModel,
    KeyModel,
    PartitionsModel,
    TableSinkModel,
    HubModel,
    DivergenceModel,
    AddressModel,
    CircleModel,
    RemovalModel,
    LaterSinkModel,
    PurgedSegmentModel,
    RebuildModel,
)

BUGS: tuple[tuple[type[Model], str], ...] = tuple((model, bug) for model in MODELS for bug in model.bugs)
