"""The model families, a folder each. None is imported with a torch or transformers outside the declared range."""

from dare.versions import require_declared

require_declared()
