"""TensorBoard's copy of the diary, which every training run leaves: metrics as curves, alarms and samples as text.

A resumed run writes the copy anew from the diary, so that one file holds every step once. It is written at once and by
no thread: a killed run loses nothing, and a full disk is met where it can be named. The library is imported with the
first step and not with this module: an evaluation writes nothing here.
"""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

from dare.checkpoint import commit, publish
from dare.diary.events import before, is_of_a_step, is_repeated, numbers, read_events
from dare.spec import Event, Sample

FOLDER = "tensorboard"


class TensorBoard:
    """A listener of the diary in `directory`; its files are in `directory/tensorboard`."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._past = read_events(directory)
        self._file: EventFile | None = None

    def __call__(self, event: Event) -> None:
        """Copy one event; the first one of a step says which of the past ones are done again."""
        if self._file is None and is_of_a_step(event):
            self._file = self._begin(before(self._past, event.step or 0), event.at)
        if self._file is not None:
            self._file.write(event)
        elif event.kind == "alarm" and not is_repeated(event, self._past):
            self._past.append(event)  # about the data, before there is a step

    def close(self) -> None:
        """Close the file, if there is one."""
        if self._file is not None:
            self._file.close()

    def _begin(self, past: list[Event], at: float) -> EventFile:
        scratch = publish(self._directory, FOLDER)
        file = EventFile(scratch, min([at, *(event.at for event in past)]))
        for event in past:
            file.write(event)
        commit(scratch)  # the open file moves with its folder
        return file


class EventFile:
    """A file as TensorBoard reads it: records of protobuf messages, the first of which names the version."""

    def __init__(self, folder: Path, begun: float) -> None:
        from tensorboardX.proto.event_pb2 import Event as Message

        name = f"events.out.tfevents.{begun:.0f}.dare"  # TensorBoard looks for the word in the middle
        self._file = (folder / name).open("ab", buffering=0)
        self._put(Message(wall_time=begun, file_version="brain.Event:2"))

    def write(self, event: Event) -> None:
        """One event of the diary."""
        from tensorboardX.proto.event_pb2 import Event as Message

        summary = _summary(event)
        if summary.value:
            self._put(Message(wall_time=event.at, step=event.step, summary=summary))

    def _put(self, message: Any) -> None:
        """One write per record, so that a killed run leaves at most one torn one, at the end."""
        from tensorboardX.record_writer import masked_crc32c

        data: bytes = message.SerializeToString()
        size = struct.pack("<Q", len(data))
        checks = [struct.pack("<I", masked_crc32c(part)) for part in (size, data)]
        self._file.write(b"".join([size, checks[0], data, checks[1]]))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _summary(event: Event) -> Any:
    from tensorboardX.proto.summary_pb2 import Summary
    from tensorboardX.summary import text

    if event.kind == "step":
        return Summary(value=[Summary.Value(tag=name, simple_value=value) for name, value in numbers(event).items()])
    if event.kind == "alarm":
        return text(f"alarm/{event.stage}", event.detail or "")
    return text("sample", as_markdown(event.sample)) if event.sample is not None else Summary()


def as_markdown(sample: Sample) -> str:
    """Prompt, completion and the step that committed each token; a fence longer than any in the text."""
    completion = "".join(sample.tokens)
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", sample.prompt + completion)), default=0))
    blocks = "\n\n".join(f"{fence}\n{words}\n{fence}" for words in (sample.prompt, completion))
    return f"reward {sample.reward:.3f}\n\n{blocks}\n\ncommitted at step {' '.join(map(str, sample.step_map))}"
