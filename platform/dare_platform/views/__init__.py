"""What pages and CLI show of entries, runs and the queue: one query function per page, plain data out.

Every function takes an open session and reads only. An unknown id gives None, never an error: the page says so.
"""

from __future__ import annotations

from dare_platform.entry_settings import SettingView
from dare_platform.entry_status import EntryStatus
from dare_platform.views.curves import curves
from dare_platform.views.entries import entries_list, entry_view
from dare_platform.views.queue import queue_view
from dare_platform.views.runs import run_view, runs_list
from dare_platform.views.scorers import difference, scorers_of
from dare_platform.views.shapes import (
    Alarm,
    ArtifactView,
    CellRuns,
    CurvesView,
    Ending,
    EntrySummary,
    EntryView,
    EventView,
    MovedAnswer,
    NotScored,
    Point,
    QueuePlace,
    QueueView,
    RunSummary,
    RunView,
    SampleView,
    ScorerDifference,
    ScoreView,
    SeedCurve,
    Series,
    Stage,
    StageState,
    UsageView,
    WaitingRun,
    Word,
    WorkerView,
)

__all__ = [
    "Alarm",
    "ArtifactView",
    "CellRuns",
    "CurvesView",
    "Ending",
    "EntryStatus",
    "EntrySummary",
    "EntryView",
    "EventView",
    "MovedAnswer",
    "NotScored",
    "Point",
    "QueuePlace",
    "QueueView",
    "RunSummary",
    "RunView",
    "SampleView",
    "ScoreView",
    "ScorerDifference",
    "SeedCurve",
    "Series",
    "SettingView",
    "Stage",
    "StageState",
    "UsageView",
    "WaitingRun",
    "Word",
    "WorkerView",
    "curves",
    "difference",
    "entries_list",
    "entry_view",
    "queue_view",
    "run_view",
    "runs_list",
    "scorers_of",
]
