"""A reward function of one's own, by import path or file: for runs on one's own machine, never part of an entry.

`package.module:function` is imported as Python does; `./file.py:function` is copied into the job directory, so that the
run can be resumed and repeated. The function takes (item, text) and returns a number, or a `Verdict` where it also
knows whether the answer is right. The SHA-256 of its source file is part of the job. Loading executes the source.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import inspect
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from dare.spec import RewardPart
from dare.tasks import Item, Task, Verdict

FOLDER = "rewards"
"""Where a job directory keeps the files of one's own functions."""
UNJUDGED = Task(
    name="unjudged",
    title="Without a task",
    version="1",
    licence="that of the data",
    source="rows with a prompt and a gold, and no task",
    chance_floor=0.0,
    chance_procedure="nobody can say what is solved",
    example=(Item("example", "", {}), ""),
    items=lambda _split, _data: (),
    judge=lambda _item, _text: Verdict(solved=False, reward=0.0, status="no_answer", answer=None),
)
"""The task of rows that have none: only a function of one's own can reward their answers."""
LARGEST = 1e6
"""Of a reward's absolute value: single precision, in which advantages are formed, is still fine there."""


class RewardError(ValueError):
    """A reward cannot be used. The message names the part or function and, once it runs, the item and the value."""


@dataclass(frozen=True)
class OwnReward:
    """A function with its name. Calling it returns a finite number or a Verdict, or raises RewardError."""

    name: str
    function: Callable[[Item, str], object]

    def __call__(self, item: Item, text: str) -> float | Verdict:
        """What the function says of one answer."""
        try:
            answer = self.function(item, text)
        except Exception as error:  # the user's code may raise anything
            raise RewardError(
                f"reward function {self.name} raised {type(error).__name__} for item {item.id!r}: {error}"
            ) from error
        value = answer.reward if isinstance(answer, Verdict) else answer
        if not isinstance(value, (int, float)):
            raise RewardError(
                f"reward function {self.name} returned {value!r:.60} for item {item.id!r}; it must return a number "
                "or a Verdict"
            )
        if not abs(value) <= LARGEST:  # true of nan and of integers that no float can hold, too
            shown = f"{value:g}" if isinstance(value, float) else "a huge integer"
            raise RewardError(
                f"reward function {self.name} returned {shown} for item {item.id!r}; it must be a finite number of at "
                f"most {LARGEST:g}"
            )
        return answer if isinstance(answer, Verdict) else float(value)


def is_own(name: str) -> bool:
    """Whether a part is a function of one's own: built-in parts have no colon."""
    return ":" in name


def own_part(reference: str, weight: float) -> RewardPart:
    """The part of a function as a person names it, with the hash of its source; RewardError when it does not load."""
    place, _, function = reference.rpartition(":")
    if not place.endswith(".py"):
        module = _imported(reference, place)
        part = RewardPart(name=reference, weight=weight, source_sha256=_source_sha256(module))
    else:
        module = _from_file(reference, Path(place))
        part = RewardPart(name=f"{Path(place).name}:{function}", weight=weight, source_sha256=_source_sha256(module))
    _function(part, module)
    return part


def keep(reference: str, directory: Path) -> None:
    """Copies the file of a function, where it has one, into the job directory."""
    place = reference.rpartition(":")[0]
    if not place.endswith(".py"):
        return
    file, kept = Path(place), directory / FOLDER / Path(place).name
    if kept.is_file() and kept.read_bytes() != file.read_bytes():
        raise RewardError(f"{kept} is another file than {file}; choose another --out or rename one")
    kept.parent.mkdir(parents=True, exist_ok=True)
    if not kept.is_file():
        shutil.copy(file, kept)


def load_own(part: RewardPart, directory: Path) -> OwnReward:
    """The function of a part of a job; RewardError when it is missing or has changed since the job was made."""
    place = part.name.rpartition(":")[0]
    in_a_file = place.endswith(".py")
    module = _from_file(part.name, directory / FOLDER / Path(place).name) if in_a_file else _imported(part.name, place)
    if part.source_sha256 not in (None, _source_sha256(module)):
        raise RewardError(
            f"the source of the reward function {part.name} has changed since the run was made: start it anew in "
            "another directory"
        )
    return _function(part, module)


def _function(part: RewardPart, module: ModuleType) -> OwnReward:
    place, _, name = part.name.rpartition(":")
    function = getattr(module, name, None)
    if function is None:
        known = ", ".join(n for n, value in vars(module).items() if inspect.isfunction(value)) or "none"
        raise RewardError(f"reward function {part.name}: {place} has no {name!r}; its functions: {known}")
    if not callable(function) or inspect.iscoroutinefunction(function):
        raise RewardError(f"reward function {part.name} is {function!r:.60}, no function that returns a number")
    try:
        inspect.signature(function).bind("item", "text")
    except (TypeError, ValueError) as error:
        raise RewardError(f"reward function {part.name} must take (item, text): {error}") from error
    return OwnReward(part.name, function)


def _source_sha256(module: ModuleType) -> str | None:
    """None for what has no file, such as a namespace package or a built-in module."""
    file = module.__file__
    return hashlib.sha256(Path(file).read_bytes()).hexdigest() if file else None


def _imported(reference: str, module: str) -> ModuleType:
    try:
        return importlib.import_module(module)
    except Exception as error:  # importing the user's code may raise anything
        raise RewardError(
            f"reward function {reference}: importing {module!r} raised {type(error).__name__}: {error}; install its "
            "package, or name its file as ./file.py:function"
        ) from error


def _from_file(reference: str, file: Path) -> ModuleType:
    if not file.is_file():
        raise RewardError(f"reward function {reference}: there is no file {file}")
    name = f"dare_own_reward_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the user's code may raise anything
        raise RewardError(f"reward function {reference}: loading it raised {type(error).__name__}: {error}") from error
    return module
