"""What is doubtful about a protocol before it runs: each finding is a known way in which published numbers went wrong.

Nothing here refuses anything; `dare evaluate --strict` does. No torch: a tokenizer is handed in, where there is one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal, NamedTuple

from dare.protocols import Asked
from dare.scoring import prompt_of
from dare.tasks import Dialogue, Item, text_of

FindingName = Literal[
    "format_not_stated", "instruct_as_base", "double_bos", "shots", "stops_cut", "gold_does_not_fit", "entry_point",
    "drawn", "not_looked_at", "unreadable", "too_long",
]  # fmt: skip
IMPOSSIBLE: frozenset[FindingName] = frozenset({"unreadable", "too_long"})
"""Findings with which there is no run at all."""
NUMBER = ("<answer>", "\\boxed", "####", "answer is")
MATHEMATICS = ("\\boxed", "<answer>", "answer is")
LETTER = ("answer", "choose", "option")
FORMS: Mapping[str, tuple[str, ...]] = {
    "gsm8k": NUMBER,
    **dict.fromkeys(("math_500", "math", "aime24", "aime25", "olympiad_bench"), MATHEMATICS),
    **dict.fromkeys(("mmlu", "mmlu_pro", "arc_c", "hellaswag", "gpqa"), LETTER),
    **dict.fromkeys(("countdown_published", "sudoku_published"), ()),
}
"""Any of these in a prompt tells the policy in what form the answer is read; tasks that are not here need none."""
CODE = '''from typing import List


# comment
class Solution:
    """Text."""

    def solve(self, numbers: List[int]) -> int:
        # comment
        return max(numbers)


def solve(numbers: List[int]) -> int:
    if not numbers:
        return 0

    return sum(numbers)
'''
"""What an answer with a program may look like."""
GOLD_KEYS = ("canonical_solution", "code", "solution", "answer", "expression")
LOOKED_AT = 200
"""Items whose golds are compared with stops and with the window."""


class Finding(NamedTuple):
    """`name` is stable; `sentence` is for a reader."""

    name: FindingName
    sentence: str


@dataclass(frozen=True)
class Reading:
    """How a checkpoint reads prompts."""

    prompt_ids: Callable[[Dialogue], Sequence[int]]
    """A dialogue through the chat template."""
    text_ids: Callable[[str], Sequence[int]]
    """Text as it is."""
    bos_id: int | None
    has_template: bool
    """Whether the checkpoint comes with a chat template of its own."""
    context: int | None = None
    """Positions that the model was made for, where its configuration says."""


def lint(asked: Asked, items: Sequence[Item], data: Path | None, reading: Reading | None) -> list[Finding]:
    """What is doubtful, in a fixed order."""
    protocol = asked.protocol
    prompt = Prompt.of(asked, items, data)
    found = [*_form(asked, prompt), *_shots(protocol.prompt, prompt), *_entry_point(asked, items, prompt)]
    if protocol.template == "none" and reading is not None and reading.has_template:
        found.append(
            Finding("instruct_as_base", "the checkpoint has a chat template, and the protocol sends prompts past it")
        )
    if reading is not None and prompt.dialogue is not None:
        found += _tokens(asked, prompt.dialogue, reading)
    golds = [gold for item in items[:LOOKED_AT] for gold in _golds(item)]
    found += _stops(asked, golds)
    if reading is not None and asked.task.kind != "likelihood":
        found += _window(asked, golds, reading)
    if protocol.sampling.temperature > 0:
        found.append(
            Finding(
                "drawn",
                f"the headline is drawn at temperature {protocol.sampling.temperature:g}: one seed is one draw",
            )
        )
    return found


@dataclass(frozen=True)
class Prompt:
    """What can be known of a prompt before it is asked."""

    text: str | None
    """None where nobody here can say."""
    shots: int | None
    dialogue: Dialogue | None

    @classmethod
    def of(cls, asked: Asked, items: Sequence[Item], data: Path | None) -> Prompt:
        """The first item's, or what OpenCompass's configuration says in its source, which is read and not run."""
        protocol = asked.protocol
        if protocol.prompt.startswith("opencompass:"):
            text = configuration(protocol.prompt.partition(":")[2])
            if text is None or _is_written_by_code(text):
                return cls(None, None, None)
            return cls(text, _shots_of_configuration(text), None)
        if not items:
            return cls(None, None, None)
        dialogue = prompt_of(protocol, asked.task, items[0], data)
        if isinstance(dialogue, str):
            shots = max(0, len(re.findall(r"(?m)^(?:Question|Problem|Q):", dialogue)) - 1)
        else:
            shots = sum(message["role"] == "assistant" for message in dialogue[:-1])
        return cls(text_of(dialogue), shots, dialogue)


def configuration(name: str) -> str | None:
    """The source of one of OpenCompass's dataset configurations, with those that it includes; None: not installed."""
    package = find_spec("opencompass")
    if package is None or package.origin is None:
        return None
    root = Path(package.origin).parent / "configs" / "datasets"
    path = root / f"{name}.py"
    seen: list[str] = []
    while path.is_file() and len(seen) < 4:
        seen.append(path.read_text(encoding="utf-8"))
        following = re.search(r"^\s+from \.(\w+) import", seen[-1], re.MULTILINE)
        if following is None:
            break
        path = path.with_name(f"{following[1]}.py")
    return "\n".join(seen) if seen else None


def template_in(directory: Path) -> bool:
    """Whether a checkpoint folder has a chat template of its own."""
    if (directory / "chat_template.jinja").is_file():
        return True
    try:
        said = json.loads((directory / "tokenizer_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(said, dict) and bool(said.get("chat_template"))


def _form(asked: Asked, prompt: Prompt) -> Iterator[Finding]:
    """cases A14, A15: the scorer reads a form that nobody told the policy."""
    needed = FORMS.get(asked.task.name, ())
    if not needed:
        return
    if prompt.text is None:
        yield Finding(
            "not_looked_at",
            "whether the prompt states the form of the answer is not known: there is no item or no source of it here, "
            "or code writes it",
        )
    elif not any(word.lower() in prompt.text.lower() for word in needed):
        yield Finding(
            "format_not_stated",
            f"the prompt does not say in what form the answer is read: none of {', '.join(needed)} is in it",
        )


def _shots(name: str, prompt: Prompt) -> Iterator[Finding]:
    """A name that promises another number of worked examples than the prompt has."""
    if prompt.shots is None:
        return
    said = re.search(r"(\d+)[-_]?shot", name)
    promised = int(said[1]) if said else None
    if promised is None and re.search(r"few_?-?shot", name) and prompt.shots == 0:
        yield Finding("shots", f"prompt {name} is called few-shot and has no worked example")
    elif promised == 0 and prompt.shots:
        yield Finding("shots", f"prompt {name} is called zero-shot and has {prompt.shots} worked examples")
    elif promised and prompt.shots != promised:
        yield Finding("shots", f"prompt {name} is called {promised}-shot and has {prompt.shots} worked examples")
    elif promised is None and prompt.shots and name == "task":
        yield Finding("shots", f"the task's own prompt is zero-shot, and this one has {prompt.shots} worked examples")


def _shots_of_configuration(text: str) -> int:
    """Answers that are written out, or rows that a retriever puts before the question."""
    fixed = re.search(r"fix_id_list=\[([\d,\s]*)\]", text)
    if fixed is not None and "FixKRetriever" in text:
        return len([number for number in fixed[1].split(",") if number.strip()])
    return max(0, len(re.findall(r"role=['\"]HUMAN['\"]", text)) - 1)  # the last one is the question


def _is_written_by_code(text: str) -> bool:
    """Whether a configuration holds no words of the prompt: a function of OpenCompass makes it."""
    words = re.findall(r"prompt=\s*\(?\s*[rf]?(['\"])(.*?)\1", text, re.DOTALL)
    if words:
        return all(re.fullmatch(r"\s*(\{\w+\}\s*)*", said) for _, said in words)
    return re.search(r"(['\"])[^'\"\n]{40,}\1|\"\"\"|'''", text) is None  # nor a sentence that a name stands for


def _entry_point(asked: Asked, items: Sequence[Item], prompt: Prompt) -> Iterator[Finding]:
    """cases D15: the tests call a function whose name the policy was never told."""
    if asked.task.kind != "code" or not items or prompt.dialogue is None:
        return
    entry = items[0].gold.get("entry_point")
    if isinstance(entry, str) and entry not in (prompt.text or ""):
        yield Finding("entry_point", f"the tests call {entry}, and the prompt does not name it")


def _tokens(asked: Asked, dialogue: Dialogue, reading: Reading) -> Iterator[Finding]:
    """The first prompt as the model will see it: it can be read, has one beginning (cases I6), and fits."""
    past_template = asked.protocol.template == "none"
    try:
        ids = list(reading.text_ids(text_of(dialogue)) if past_template else reading.prompt_ids(dialogue))
    except ValueError as error:
        yield Finding("unreadable", f"the prompt cannot be read by this policy: {error}")
        return
    leading = next((place for place, token in enumerate(ids) if token != reading.bos_id), len(ids))
    if leading > 1:
        yield Finding("double_bos", f"the prompt begins with {leading} beginnings of sequence")
    window = 0 if asked.task.kind == "likelihood" else asked.protocol.sampling.gen_length
    if reading.context is not None and len(ids) + window > reading.context:
        yield Finding(
            "too_long",
            f"the first prompt has {len(ids)} tokens and the window {window}, together more than the "
            f"{reading.context} positions of this policy",
        )


def _stops(asked: Asked, golds: Sequence[str]) -> Iterator[Finding]:
    """cases D4: a stop that right answers contain."""
    for stop in asked.protocol.stops:
        cut = sum(stop in gold for gold in golds)
        if cut:
            yield Finding("stops_cut", f"the stop {stop!r} cuts {cut} of {len(golds)} right answers")
        elif asked.task.kind == "code" and (stop in CODE or stop.strip() in ("```", "")):
            yield Finding("stops_cut", f"the stop {stop!r} is ordinary in a program, which would end before it")


def _window(asked: Asked, golds: Sequence[str], reading: Reading) -> Iterator[Finding]:
    """A window in which the right answer alone has no room, for the form and the reasoning left out."""
    room = asked.protocol.sampling.gen_length
    try:
        lengths = [len(reading.text_ids(gold)) for gold in golds]
    except ValueError:  # characters that a tiny tokenizer does not have: the prompt will say so
        return
    short = sum(length > room for length in lengths)
    if short:
        yield Finding(
            "gold_does_not_fit",
            f"{short} of {len(golds)} right answers have more tokens than the window of {room}; the longest has "
            f"{max(lengths)}",
        )


def _golds(item: Item) -> list[str]:
    """Right answers as text, as far as an item has some."""
    return [gold for key in GOLD_KEYS if isinstance(gold := item.gold.get(key), str) and gold][:1]
