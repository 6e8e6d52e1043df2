"""Base of everything that crosses the border: frozen, refuses unknown keys and non-finite numbers, has a digest."""

from __future__ import annotations

import hashlib
import json
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, model_serializer


class Frozen(BaseModel):
    """Base of everything that crosses the border."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True)

    def digest(self) -> str:
        """SHA-256 of the canonical JSON: equal content, equal hash, whatever the order of keys."""
        canonical = json.dumps(self.model_dump(mode="json"), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return hashlib.sha256(canonical.encode()).hexdigest()


class Grown(Frozen):
    """A record that was given fields after digests of it were stored, for example of a track in a database.

    What is in `added` is left out of the canonical form where it has its default, so that old digests stay true.
    """

    added: ClassVar[frozenset[str]] = frozenset()

    @model_serializer(mode="wrap")
    def _without_what_is_not_used(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        unused = {n for n in self.added if getattr(self, n) == type(self).model_fields[n].get_default()}
        return {name: value for name, value in handler(self).items() if name not in unused}
