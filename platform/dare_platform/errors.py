"""What can go wrong on the platform, each with a sentence a person can act on.

PlatformError
├── SettingsError            the environment says something that cannot be
├── DatabaseLockedError      another process kept the SQLite file locked
├── SchemaError              the database is older or newer than this program
├── NaiveTimeError           a time without a zone reached the database
├── IllegalMoveError         a run cannot go from where it is to there
├── UnknownRunError          no such run
├── RegistryError            a track, task or backbone contradicts what is recorded
├── JobDirectoryError        a job directory cannot be made as ordered
├── OutputError              a runner left something behind that cannot be accepted
│   └── ScorerChangedError   a scorer says otherwise of answers that it has judged before
├── RescoringError           a run cannot be scored again as asked
├── LaunchError              a run's process could not be started or stopped
└── BrokerSettingsError      Celery runs with settings that would lose or hold messages
"""

from __future__ import annotations


class PlatformError(Exception):
    """Base of all errors that the platform raises on purpose."""


class SettingsError(PlatformError):
    """A setting has a value that it cannot have."""


class DatabaseLockedError(PlatformError):
    """SQLite stayed locked for longer than we wait."""


class SchemaError(PlatformError):
    """The database's revision is not this program's."""


class NaiveTimeError(PlatformError, ValueError):
    """A datetime without a zone."""


class IllegalMoveError(PlatformError):
    """The table of moves does not hold this one."""


class UnknownRunError(PlatformError):
    """No run has this id."""


class RegistryError(PlatformError):
    """What is to be registered contradicts what is registered."""


class JobDirectoryError(PlatformError):
    """The order for a run cannot be written as a directory."""


class OutputError(PlatformError):
    """What a runner left behind is not acceptable; the sentence says which file and why."""


class ScorerChangedError(OutputError):
    """One name, two verdicts on one answer."""


class RescoringError(PlatformError):
    """The run has no stored answers, or nobody here can score them as asked."""


class LaunchError(PlatformError):
    """A process could not be started, or did not end when told to."""


class BrokerSettingsError(PlatformError):
    """The effective Celery settings are not the ones that our guarantees stand on."""
