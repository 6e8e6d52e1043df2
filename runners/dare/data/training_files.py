"""What a training job is given of published data: what its reference is read from, and nothing of a test split."""

from __future__ import annotations

from pathlib import Path

from dare.tasks import load_task, task_names


def write_training_files(reference: str, source: Path | None, target: Path) -> tuple[str, ...]:
    """Put what a reference is read from into the folder `target`, read-only; their names below it.

    Only `prompts:<task>` is read from published files. Raises MissingDataError where `source` does not have them.
    """
    kind, _, name = reference.partition(":")
    if kind != "prompts" or name not in task_names():
        return ()
    written = []
    for path, content in load_task(name).training_files.items():
        file = target / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content(source))
        file.chmod(0o444)
        written.append(path)
    return tuple(written)
