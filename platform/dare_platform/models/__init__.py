"""The tables. Names follow the design's nouns; every constraint has a name and holds on SQLite and PostgreSQL.

Closed sets are CHECK lists, so that adding a value is an ordinary migration. Columns named `*_at` of type float are
epoch seconds of the database's clock, which decides about leases; aware UTC times are for people. Nothing is deleted:
foreign keys restrict, and the tables of `IMMUTABLE` refuse UPDATE and DELETE by trigger.
"""

from __future__ import annotations

from dare.spec import ItemStatus
from dare_platform.models.asked import (
    Attempt,
    CheckResult,
    Entry,
    GpuDevice,
    GpuLease,
    LogChunk,
    Run,
    RunEvent,
    Worker,
)
from dare_platform.models.base import (
    ACTIVE,
    FINISHED,
    IMMUTABLE,
    LOCAL_ACCOUNT,
    LOG_CHUNK_BYTES,
    LOG_TAIL_CHARACTERS,
    Base,
    Channel,
    DeliveryState,
    Device,
    EntryKind,
    Gate,
    GpuHealth,
    Outcome,
    Role,
    State,
    Visibility,
    WorkerState,
    WorkKind,
)
from dare_platform.models.compared import (
    Algorithm,
    AlgorithmVersion,
    Backbone,
    BackboneRevision,
    Cell,
    Snapshot,
    TaskItem,
    TaskVersion,
    TrackVersion,
)
from dare_platform.models.outcomes import Artifact, MetricPoint, Prediction, Result, RunArtifact, ScoreItem, Usage
from dare_platform.models.people import Account, ApiToken, Delivery, QuotaLedger, Subscription
from dare_platform.models.plumbing import AuditLog, Outbox

__all__ = [
    "ACTIVE",
    "FINISHED",
    "IMMUTABLE",
    "LOCAL_ACCOUNT",
    "LOG_CHUNK_BYTES",
    "LOG_TAIL_CHARACTERS",
    "Account",
    "Algorithm",
    "AlgorithmVersion",
    "ApiToken",
    "Artifact",
    "Attempt",
    "AuditLog",
    "Backbone",
    "BackboneRevision",
    "Base",
    "Cell",
    "Channel",
    "CheckResult",
    "Delivery",
    "DeliveryState",
    "Device",
    "Entry",
    "EntryKind",
    "Gate",
    "GpuDevice",
    "GpuHealth",
    "GpuLease",
    "ItemStatus",
    "LogChunk",
    "MetricPoint",
    "Outbox",
    "Outcome",
    "Prediction",
    "QuotaLedger",
    "Result",
    "Role",
    "Run",
    "RunArtifact",
    "RunEvent",
    "ScoreItem",
    "Snapshot",
    "State",
    "Subscription",
    "TaskItem",
    "TaskVersion",
    "TrackVersion",
    "Usage",
    "Visibility",
    "WorkKind",
    "Worker",
    "WorkerState",
]
