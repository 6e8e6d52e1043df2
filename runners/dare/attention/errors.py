"""What can be wrong with a choice of attention.

AttentionError
├── UnknownAttentionError        no backend has that name
├── UnavailableAttentionError    this machine lacks what it needs
└── UnsupportedAttentionError    it cannot do what it was asked for
"""

from __future__ import annotations


class AttentionError(ValueError):
    """A backend that cannot be used as asked."""


class UnknownAttentionError(AttentionError):
    """The name is no backend."""


class UnavailableAttentionError(AttentionError):
    """This machine lacks what the backend needs."""


class UnsupportedAttentionError(AttentionError):
    """The backend cannot do what it was asked for."""
