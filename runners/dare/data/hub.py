"""Files of a data set of the hub at one commit: from the cache of this machine when they are there, else fetched once.

Only files of rows are ever fetched: no scripts, no pickles. A branch or tag is refused, since it may move.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from dare.data.files import SUFFIXES, DataError, pick
from dare.weights.hub import HUB_ID, failures, said

COMMIT = re.compile(r"[0-9a-f]{40}")
FORM = "hub:<owner>/<name>@<commit>/<file or split>"


@dataclass(frozen=True)
class HubReference:
    """A file or a split of a data set at a commit; `wanted` is empty where the data set has only one."""

    hub_id: str
    commit: str
    wanted: str


def parse(place: str) -> HubReference:
    """What follows `hub:`."""
    hub_id, at, rest = place.partition("@")
    commit, _, wanted = rest.partition("/")
    if HUB_ID.fullmatch(hub_id) is None:
        raise DataError(f"{hub_id!r} is no name of a data set of the hub; it is {FORM}")
    if not at or COMMIT.fullmatch(commit) is None:
        given = f"the revision {commit!r}" if commit else "no revision"
        raise DataError(f"hub:{hub_id} has {given}; name the 40 hexadecimal digits of a commit, which cannot move")
    if ".." in wanted.split("/"):
        raise DataError(f"{wanted!r} leads out of the data set")
    return HubReference(hub_id, commit, wanted)


def fetch_data(reference: HubReference, endpoint: str | None = None) -> list[tuple[Path, str]]:
    """The files with their names in the data set; DataError where they are neither here nor to be had."""
    cached = _cached(reference)
    if cached is not None:
        return cached
    from huggingface_hub import HfApi, hf_hub_download

    hub_id, commit = reference.hub_id, reference.commit
    try:
        listed = HfApi(endpoint=endpoint).list_repo_files(hub_id, revision=commit, repo_type="dataset")
        names = pick(listed, reference.wanted, hub_id)
        return [
            (Path(hf_hub_download(hub_id, n, repo_type="dataset", revision=commit, endpoint=endpoint)), n)
            for n in names
        ]
    except failures() as error:
        reason = said(error, hub_id, commit)
        if reason is None:
            reason = (
                f"the hub cannot be reached for {hub_id} ({type(error).__name__}), and its files are not in the "
                "cache: fetch them where there is a network, and name them as file:<path>"
            )
        raise DataError(reason) from error


def _cached(reference: HubReference) -> list[tuple[Path, str]] | None:
    """The files of the cache, where they are all there."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        found = snapshot_download(
            reference.hub_id, repo_type="dataset", revision=reference.commit, local_files_only=True
        )
    except LocalEntryNotFoundError:
        return None
    folder = Path(found)
    names = [str(path.relative_to(folder)) for path in folder.rglob("*") if path.name.endswith(SUFFIXES)]
    if not reference.wanted and len(names) != 1:
        return None  # the cache may hold a part of the data set: only the hub can say whether this is all
    try:
        return [(folder / name, name) for name in pick(names, reference.wanted, reference.hub_id)]
    except DataError:
        return None
