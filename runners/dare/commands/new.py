"""`python -m dare new`: the first file of a method, which passes `dare check` before its author has changed a line."""

from __future__ import annotations

import keyword
import re
import shutil
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from dare.catalog import UnknownAlgorithmError, algorithms, load_source
from dare.commands.terminal import refuse, say
from dare.source.problems import nearest

NAME = re.compile(r"[a-z][a-z0-9_]{0,39}")
HOOKS = {"grpo": ("GRPO", "prompts"), "paired_preference": ("PairedPreference", "preferences")}
"""Bases that are no method of the folder: class, and what it trains on."""
TAKEN = ("Credit", "LossTerms", "NoisyViews", "Rollout", "Tensor", "Algorithm")
"""Names that the file imports, or that an author will want to."""

CREDIT = '''"""$title: say here in one sentence what differs, and from which paper and equation."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from $module import $base
from dare.types import Credit, Rollout


@dataclass(frozen=True, kw_only=True)
class $title($base):
    """$origin, with every advantage multiplied by `strength`: replace this by your idea."""

    # A field is a hyperparameter: its type, its default, and a sentence. `--set strength=0.5` sets it.
    strength: float = 1.0
    """Factor on every advantage; 1 is $origin."""

    # A method is what differs. What is not written here is that of $origin: `forward_process` hides tokens,
    # `loss` compares log-probabilities. Try a wrong one: `dare check` says which rule it breaks.
    def credit(self, rollout: Rollout, generator: torch.Generator) -> Credit:
        """One unit of credit per row of the answer below: which completion it is of, and its advantage."""
        credit = super().credit(rollout, generator)
        # rollout.reward has a number per completion, rollout.group the prompt that it answers; credit.row[u] is the
        # completion of unit u. Random numbers come from `generator` and from nowhere else.
        return replace(credit, advantage=self.strength * credit.advantage)
'''

LOSS = '''"""$title: say here in one sentence what differs, and from which paper and equation."""

from __future__ import annotations

from dataclasses import dataclass, replace

from torch import Tensor

from $module import $base
from dare.types import Credit, LossTerms, NoisyViews


@dataclass(frozen=True, kw_only=True)
class $title($base):
    """$origin, with the loss multiplied by `strength`: replace this by your idea."""

    # A field is a hyperparameter: its type, its default, and a sentence. `--set strength=0.5` sets it.
    strength: float = 1.0
    """Factor on the loss; 1 is $origin."""

    # A method is what differs. What is not written here is that of $origin: `credit` makes the units,
    # `forward_process` hides tokens. Try a wrong one: `dare check` says which rule it breaks.
    def loss(
        self, logp: Tensor, old: Tensor | None, ref: Tensor | None, credit: Credit, views: NoisyViews
    ) -> LossTerms:
        """A numerator and a denominator per unit; the loss of a step is the sum of the ones over that of the others."""
        terms = super().loss(logp, old, ref, credit, views)
        # logp has a log-probability per view and position, under the policy; ref the same under the frozen reference.
        # views.unit[v] is the unit of view v, views.coef its weights: zero wherever nothing is scored.
        return replace(terms, num=self.strength * terms.num)
'''

SETTINGS = """# What differs from the class's defaults, a line each: `--settings` of `dare check` and `dare submit`.
strength: 1.0
"""


def new(
    name: Annotated[str, typer.Argument(help="Name of the method: small letters, digits and _.")],
    base: Annotated[str, typer.Option("--from", help="A built-in method, or `grpo`, or `paired_preference`.")] = "d1",
    folder: Annotated[Path, typer.Option("--in", help="Where its folder goes.")] = Path(),
) -> None:
    """Start a method: NAME/NAME.py, which is its base with one more hyperparameter, and NAME/hyperparameters.yaml.

    Example: `dare new my_method --from bgpo`, then `dare check my_method/my_method.py`
    """
    title, (module, parent, trains_on) = _title(name), _base(base)
    if title in (parent, *TAKEN):
        refuse(f"{name!r} would be class {title}, which the file imports already; choose another name")
    target = folder / name
    if target.exists():
        refuse(f"{target} exists already; choose another name, or remove it")
    if not folder.is_dir():
        refuse(f"there is no folder {folder}")
    text = Template(CREDIT if trains_on == "prompts" else LOSS)
    scratch = folder / f".{name}.new"
    shutil.rmtree(scratch, ignore_errors=True)
    scratch.mkdir()
    source = text.substitute(title=title, module=module, base=parent, origin=base)
    (scratch / f"{name}.py").write_text(source, encoding="utf-8")
    (scratch / "hyperparameters.yaml").write_text(SETTINGS, encoding="utf-8")
    scratch.rename(target)
    file = target / f"{name}.py"
    say(f"{file} is {base} with one more hyperparameter. Change it, and then:")
    say(f"  dare check {file}")
    backbone = "--backbone llada-tiny" + ("" if trains_on == "prompts" else f" --data {DATA[trains_on]}")
    say(f"  dare train --algorithm {file} {backbone} --out runs/{name}")
    say(f"  dare submit {file} --settings {target / 'hyperparameters.yaml'}")


DATA = {"demonstrations": "corpus:sudoku/clean", "preferences": "preferences:sudoku"}
"""Data for a first look at what does not train on prompts."""


def _title(name: str) -> str:
    """The class of a method: `my_method` is MyMethod."""
    if not NAME.fullmatch(name) or keyword.iskeyword(name):
        refuse(f"the name {name!r} is not possible: small letters, digits and _, a letter first, 40 at most")
    if name in algorithms() or name in HOOKS:
        refuse(f"{name!r} is built in; choose another name, and --from {name} to begin with it")
    return "".join(word.capitalize() for word in name.split("_"))


def _base(name: str) -> tuple[str, str, str]:
    """Module, class, and what it trains on."""
    if name in HOOKS:
        return "dare.algorithm", *HOOKS[name]
    try:
        source = load_source(name)
    except UnknownAlgorithmError:
        known = [*HOOKS, *algorithms()]
        refuse(f"--from {name}: there is no such method.{nearest(name, known)} Known: {', '.join(known)}")
    return f"dare.algorithms.{name}", source.class_name, source.trains_on
