"""Fetches a checkpoint from the hub at one exact commit: weights, configuration, tokenizer; never code or pickles."""

from __future__ import annotations

import re
import shutil
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PATTERNS = ["*.safetensors", "*.json", "*.txt", "*.jinja"]
"""All else stays where it is: remote code and pickles above all, and whatever lies in folders."""
SMALL = ["*.json", "*.txt", "*.jinja"]
HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")


class HubError(RuntimeError):
    """The hub cannot be reached, or has not what was asked for. One sentence."""


@dataclass(frozen=True)
class Pinned:
    """A repository at a commit."""

    hub_id: str
    commit: str
    licence: str | None
    bytes: int | None
    """Of what would be fetched, where the hub says so."""
    endpoint: str | None = None


def pin(hub_id: str, revision: str, endpoint: str | None = None) -> Pinned:
    """The commit that a branch, a tag or a commit hash stands for now."""
    from huggingface_hub import HfApi

    try:
        info: Any = HfApi(endpoint=endpoint).model_info(hub_id, revision=revision, files_metadata=True)
    except failures() as error:
        raise _sentence(error, hub_id, revision) from error
    suffixes = tuple(pattern.removeprefix("*") for pattern in PATTERNS)
    sizes = [file.size for file in info.siblings or [] if file.rfilename.endswith(suffixes)]
    licence = getattr(info.card_data, "license", None) if info.card_data else None
    return Pinned(hub_id, info.sha, str(licence) if licence else None, None if None in sizes else sum(sizes), endpoint)


def fetch(pinned: Pinned, directory: Path, patterns: list[str]) -> None:
    """The files of a commit that match, into `directory`; what is there already is not fetched again."""
    from huggingface_hub import snapshot_download

    directory.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(directory).free
    if patterns == PATTERNS and pinned.bytes is not None and pinned.bytes > free:
        raise HubError(
            f"{pinned.hub_id} needs {pinned.bytes / 1e9:.1f} GB, but {directory} has {free / 1e9:.1f} GB free: "
            "set DARE_BACKBONES to a larger disk"
        )
    try:
        snapshot_download(
            pinned.hub_id,
            revision=pinned.commit,
            local_dir=directory,
            allow_patterns=patterns,
            ignore_patterns=["*/*"],
            endpoint=pinned.endpoint,
        )
    except failures() as error:
        raise _sentence(error, pinned.hub_id, pinned.commit) from error


def failures() -> tuple[type[Exception], ...]:
    """What the client raises: `OSError`s of requests up to version 0.36, errors of httpx in 1 and of httpx2 in 2."""
    clients = [import_module(name) for name in ("httpx", "httpx2") if find_spec(name) is not None]
    return (OSError, *(client.HTTPError for client in clients))


def said(error: Exception, hub_id: str, revision: str) -> str | None:
    """What the hub itself answered, in one sentence; None where it did not answer."""
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    if isinstance(error, GatedRepoError):
        return f"{hub_id} is gated: accept its terms on its page, set HF_TOKEN, and try again"
    if isinstance(error, RevisionNotFoundError):
        return f"{hub_id} has no revision {revision!r}: name a branch, a tag or a commit that it has"
    if isinstance(error, RepositoryNotFoundError):
        return f"the hub has no {hub_id}, or shows it to nobody without a token: check the name, or set HF_TOKEN"
    return None


def _sentence(error: Exception, hub_id: str, revision: str) -> HubError:
    unreached = (
        f"the hub cannot be reached for {hub_id} ({type(error).__name__}): fetch its folder where there is a network, "
        "and add the folder by its path"
    )
    return HubError(said(error, hub_id, revision) or unreached)
