"""What the columns of a published data set mean: one declared layout per form, never a guess.

A layout is recognised when a file has all of its columns. Where two fit, the reference says which, by its columns:
`file:rows.parquet#question/answer`. A row whose gold (the answer, the chosen text, what the judge compares with) is
null, empty, not a number or of no use to its judge is set aside with the reason; anything else that is wrong is an
error that names file, row, column and value.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal

from dare.data.corpus import Preference
from dare.data.files import DataError, Row
from dare.rewards.own import UNJUDGED
from dare.tasks import Demonstration, Dialogue, Item, Task, load_task, task_names

Kind = Literal["prompts", "demonstrations", "preferences"]
ROLES = ("system", "user", "assistant", "tool")
SHOWN = 40


class UnusableGoldError(ValueError):
    """The gold of this row is of no use: the row is set aside. The message is the reason."""


@dataclass(frozen=True)
class JudgedItem:
    """A prompt to sample answers for, with the task that judges them."""

    item: Item
    task: Task


Example = JudgedItem | Demonstration | Preference


@dataclass(frozen=True)
class Layout:
    """A published form. `read` makes an example of a row; `columns` are all needed, in the order of its name."""

    columns: tuple[str, ...]
    kind: Kind
    read: Callable[[Row, str], Example]

    @property
    def name(self) -> str:
        """How a reference names it."""
        return "/".join(self.columns)


def layout_of(rows: Sequence[Row], file: str, named: str = "") -> Layout:
    """The one layout whose columns the file has, or the named one."""
    columns = {name: None for row in rows for name in row.values}
    if named:
        chosen = next((layout for layout in LAYOUTS if layout.name == named), None)
        if chosen is None:
            raise DataError(f"unknown layout {named!r} of {file}; known: {', '.join(one.name for one in LAYOUTS)}")
        missing = [name for name in chosen.columns if name not in columns]
        if missing:
            raise DataError(f"{file} has no column {missing[0]!r}, which {named} needs; it has: {', '.join(columns)}")
        return chosen
    fitting = [layout for layout in LAYOUTS if columns.keys() >= set(layout.columns)]
    largest = [one for one in fitting if not any(set(one.columns) < set(other.columns) for other in fitting)]
    if not largest:
        known = ", ".join(layout.name for layout in LAYOUTS)
        raise DataError(f"{file} has the columns {', '.join(columns) or 'of nothing'}; what is understood: {known}")
    if len(largest) > 1:
        ways = " or ".join(f"#{layout.name}" for layout in largest)
        raise DataError(f"{file} can be read in {len(largest)} ways: add {ways} to its name")
    return largest[0]


def row_id(row: Row, number: int) -> str:
    """The row's own `id`, or its number in the data set from 1."""
    given = row.values.get("id", number)
    if isinstance(given, bool) or not isinstance(given, (str, int)):
        raise DataError(f"{row.place}: 'id' is {given!r:.{SHOWN}}; it must be a text or a whole number")
    return str(given)


# --- values -----------------------------------------------------------------------------------------------------------


def _given(row: Row, column: str) -> Any:
    """A value that is no gold: its absence is an error."""
    value = row.values.get(column)
    if value is None:
        raise DataError(f"{row.place}: {column!r} is missing or null")
    return value


def _gold(row: Row, column: str) -> Any:
    """A value that is gold: without it, the row is set aside."""
    value = row.values.get(column)
    if value is None:
        raise UnusableGoldError(f"{column!r} is null")
    odd = next((part for part in _parts(value) if not isinstance(part, (str, int, float))), None)
    if odd is not None:
        raise DataError(f"{row.place}: {column!r} holds a {type(odd).__name__}, {odd!r:.{SHOWN}}; JSON has none")
    if any(isinstance(part, float) and not math.isfinite(part) for part in _parts(value)):
        raise UnusableGoldError(f"{column!r} is not a finite number: {value!r:.{SHOWN}}")
    if not any(part.strip() if isinstance(part, str) else True for part in _parts(value)):
        raise UnusableGoldError(f"{column!r} is empty: {value!r:.{SHOWN}}")
    return value


def _parts(value: Any) -> Iterable[Any]:
    """All that is neither a list nor a mapping."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list):
        return [part for item in value for part in _parts(item)]
    return [value]


def _text(value: Any, row: Row, column: str) -> str:
    if not isinstance(value, str):
        raise DataError(f"{row.place}: {column!r} is {value!r:.{SHOWN}}; it must be a text")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{row.place}: {column!r} has half of a surrogate pair, {value[error.start]!r} at {error.start}"
        ) from error
    return value


def _messages(value: Any, row: Row, column: str) -> tuple[Mapping[str, str], ...]:
    if not isinstance(value, list) or not value:
        raise DataError(f"{row.place}: {column!r} is {value!r:.{SHOWN}}; it must be a list of messages")
    for number, message in enumerate(value, start=1):
        if not isinstance(message, dict) or message.get("role") not in ROLES:
            raise DataError(
                f"{row.place}: message {number} of {column!r} is {message!r:.{SHOWN}}; "
                f"it must have content and a role: {', '.join(ROLES)}"
            )
        if message.get("tool_calls"):
            raise DataError(f"{row.place}: message {number} of {column!r} has tool calls, which no answer here makes")
        _text(message.get("content"), row, f"{column}[{number}].content")
    return tuple({"role": message["role"], "content": message["content"]} for message in value)


def _prompt(value: Any, row: Row, column: str) -> Dialogue:
    """A text or messages. One message of the user is its text: the chat template writes the same."""
    if isinstance(value, str):
        if not value.strip():
            raise DataError(f"{row.place}: {column!r} is empty: {value!r:.{SHOWN}}")
        return _text(value, row, column)
    messages = _messages(value, row, column)
    if messages[-1]["role"] == "assistant":
        raise DataError(f"{row.place}: {column!r} ends with an answer, {messages[-1]['content']!r:.{SHOWN}}")
    return messages[0]["content"] if [message["role"] for message in messages] == ["user"] else messages


def _answer(text: str, column: str) -> str:
    if not text.strip():
        raise UnusableGoldError(f"{column!r} is empty: {text!r:.{SHOWN}}")
    return text


def _user(prompt: Dialogue) -> list[Mapping[str, str]]:
    return [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)


def _split(value: Any, row: Row, column: str) -> tuple[Dialogue | None, str]:
    """An answer, and the turns before it where it is given with them."""
    if isinstance(value, str):
        return None, _text(value, row, column)
    messages = _messages(value, row, column)
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{row.place}: {column!r} ends with {messages[-1]['role']!r}; it must end with an answer")
    if len(messages) == 1:
        return None, messages[0]["content"]
    before = [dict(message) for message in messages[:-1]]
    return _prompt(before, row, column), messages[-1]["content"]


# --- layouts ----------------------------------------------------------------------------------------------------------


def _demonstration(prompt: str, answer: str) -> Layout:
    def read(row: Row, _id: str) -> Demonstration:
        asked = _prompt(_given(row, prompt), row, prompt)
        before, text = _split(_gold(row, answer), row, answer)
        if before is not None and _user(before) != _user(asked):
            raise DataError(f"{row.place}: {answer!r} answers {before!r:.{SHOWN}}, {prompt!r} is {asked!r:.{SHOWN}}")
        return Demonstration(asked, _answer(text, answer))

    return Layout((prompt, answer), "demonstrations", read)


def _conversation(row: Row, _id: str) -> Demonstration:
    prompt, answer = _split(_given(row, "messages"), row, "messages")
    if prompt is None:
        raise DataError(f"{row.place}: 'messages' has an answer and no question")
    return Demonstration(prompt, _answer(answer, "messages"))


def _instruction(row: Row, _id: str) -> Demonstration:
    """Alpaca's form: an `input` that is not empty follows the instruction after a blank line."""
    asked = _text(_given(row, "instruction"), row, "instruction")
    more = row.values.get("input")
    if more is not None and _text(more, row, "input").strip():
        asked = f"{asked}\n\n{more}"
    return Demonstration(asked, _text(_gold(row, "output"), row, "output"))


def _preference(row: Row, _id: str) -> Preference:
    """A prompt and two answers; answers may be given as conversations, which then begin with the prompt."""
    given = row.values.get("prompt")
    asked = None if given is None else _prompt(given, row, "prompt")
    chosen = _split(_gold(row, "chosen"), row, "chosen")
    value = row.values.get("rejected")
    if value is None:
        raise UnusableGoldError("'rejected' is null")
    rejected = _split(value, row, "rejected")
    for column, (before, _) in (("chosen", chosen), ("rejected", rejected)):
        if before is None:
            continue
        if asked is not None and _user(before) != _user(asked):
            raise DataError(
                f"{row.place}: {column!r} begins with {before!r:.{SHOWN}}, the prompt is {asked!r:.{SHOWN}}"
            )
        asked = before
    if asked is None:
        raise DataError(f"{row.place}: 'prompt' is missing or null")
    if chosen[1] == rejected[1]:
        raise UnusableGoldError("chosen and rejected are the same text, so there is nothing to prefer")
    return Preference(asked, _answer(chosen[1], "chosen"), rejected[1])


def _judged(row: Row, id: str) -> JudgedItem:
    """Our own form: the task by name, and the gold as that task keeps it."""
    prompt = _prompt(_given(row, "prompt"), row, "prompt")
    task = _task(_text(_given(row, "task"), row, "task"), row)
    gold = _gold(row, "gold")
    if not isinstance(gold, dict):
        raise DataError(f"{row.place}: 'gold' is {gold!r:.{SHOWN}}; task {task.name!r} keeps a mapping")
    return _checked(Item(id, prompt, gold), task)


def _unjudged(row: Row, id: str) -> JudgedItem:
    """Without a task: for a reward function of one's own, which gets a gold that is no mapping as `{"gold": value}`."""
    prompt, gold = _prompt(_given(row, "prompt"), row, "prompt"), _gold(row, "gold")
    return JudgedItem(Item(id, prompt, gold if isinstance(gold, dict) else {"gold": gold}), UNJUDGED)


def _verl(row: Row, id: str) -> JudgedItem:
    """verl's form: `reward_model.ground_truth` and what `extra_info` adds become the gold of a task of ours."""
    source = _text(_given(row, "data_source"), row, "data_source")
    if source not in SOURCES:
        known = ", ".join(sorted(SOURCES))
        raise DataError(f"{row.place}: 'data_source' is {source!r}; no task here judges it; known: {known}")
    name, gold_of = SOURCES[source]
    prompt = _prompt(_given(row, "prompt"), row, "prompt")
    truth = _gold(Row(row.place, {"ground_truth": None, **_mapping(row, "reward_model")}), "ground_truth")
    try:
        gold = gold_of(str(truth), _mapping(row, "extra_info"))
    except (ValueError, TypeError, LookupError) as error:
        raise UnusableGoldError(
            f"the gold of {source!r} cannot be read from {truth!r:.{SHOWN}}: {error!r:.80}"
        ) from error
    return _checked(Item(id, prompt, gold), _task(name, row))


def _mapping(row: Row, column: str) -> Mapping[str, Any]:
    value = row.values.get(column) or {}
    if not isinstance(value, dict):
        raise DataError(f"{row.place}: {column!r} is {value!r:.{SHOWN}}; it must be a mapping")
    return value


def _task(name: str, row: Row) -> Task:
    known = _tasks()
    if name not in known:
        raise DataError(f"{row.place}: 'task' is {name!r}; known: {', '.join(known)}")
    return known[name]


@cache
def _tasks() -> Mapping[str, Task]:
    """Every task by name: looking into the folder once, and not for every row."""
    return {name: load_task(name) for name in task_names()}


def _checked(item: Item, task: Task) -> JudgedItem:
    """A gold that its judge cannot compare an answer with would end the run at the first answer."""
    try:
        task.judge(item, task.example[1])
    except Exception as error:  # whatever the judge trips over: the gold is what it was not made for
        raise UnusableGoldError(
            f"the judge of {task.name!r} cannot use {dict(item.gold)!r:.{SHOWN}}: {error!r:.80}"
        ) from error
    return JudgedItem(item, task)


def _countdown(truth: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    numbers = json.loads(extra["numbers"]) if isinstance(extra["numbers"], str) else list(extra["numbers"])
    if not numbers or not all(isinstance(number, int) for number in numbers):
        raise ValueError(f"numbers are {numbers!r}")
    return {"numbers": numbers, "target": int(truth)}


def _sudoku(_truth: str, extra: Mapping[str, Any]) -> dict[str, Any]:
    puzzle = str(extra["puzzle"])
    if len(puzzle) != 16 or set(puzzle) - set("01234"):
        raise ValueError(f"the puzzle is {puzzle!r}")
    return {"puzzle": puzzle}


SOURCES: Mapping[str, tuple[str, Callable[[str, Mapping[str, Any]], dict[str, Any]]]] = {
    "countdown": ("countdown", _countdown),
    "openai/gsm8k": ("gsm8k", lambda truth, _extra: {"answer": truth}),
    "sudoku": ("sudoku", _sudoku),
}
"""The task behind a `data_source`, and the gold that it keeps."""

LAYOUTS = (
    Layout(("prompt", "task", "gold"), "prompts", _judged),
    Layout(("prompt", "gold"), "prompts", _unjudged),
    Layout(("data_source", "prompt", "reward_model"), "prompts", _verl),
    Layout(("prompt", "chosen", "rejected"), "preferences", _preference),
    Layout(("chosen", "rejected"), "preferences", _preference),
    _demonstration("prompt", "answer"),
    _demonstration("prompt", "completion"),
    _demonstration("prompt", "response"),
    _demonstration("question", "answer"),
    _demonstration("problem", "solution"),
    Layout(("instruction", "output"), "demonstrations", _instruction),
    Layout(("messages",), "demonstrations", _conversation),
)
