"""`python -m dare memory`: what a run needs in memory, as a table or as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from rich.console import Console
from rich.table import Table

from dare.catalog import UnknownBackboneError, backbone_directory, backbones
from dare.commands.terminal import at_least, pairs, refuse, say
from dare.sampling_config import SamplingConfig
from dare.spec import AlgorithmSpec, LoraSettings, TrainSettings

if TYPE_CHECKING:
    from dare.memory import Estimate

GIB = 2**30


def memory(
    backbone: Annotated[str, typer.Argument(help="A backbone of this machine, a folder, or a config.json alone.")],
    length: Annotated[int, typer.Option(help="Tokens of prompt and completion.")],
    batch: Annotated[int, typer.Option(help="Completions per step: prompts x group.")] = 64,
    algorithm: Annotated[str | None, typer.Option(help="A built-in algorithm; none is decoding alone.")] = None,
    set_: Annotated[list[str] | None, typer.Option("--set", help="hyperparameter=value, repeatable.")] = None,
    gen_length: Annotated[int | None, typer.Option(help="Tokens of the completion; the backbone's by default.")] = None,
    micro_batch: Annotated[int | None, typer.Option(help="Views per forward pass with gradient.")] = None,
    group: Annotated[int | None, typer.Option(help="Completions per prompt.")] = None,
    dtype: Annotated[Literal["float32", "bfloat16"], typer.Option(help="Of weights and forward passes.")] = "float32",
    lora: Annotated[int | None, typer.Option(help="Rank of adapters; all weights train without.")] = None,
    checkpointing: Annotated[bool, typer.Option("--checkpointing", help="Gradient checkpointing.")] = False,
    attention: Annotated[Literal["eager", "flash", "flex", "sdpa"], typer.Option(help="Backend.")] = "sdpa",
    json_: Annotated[bool, typer.Option("--json", help="Bytes as one JSON object on stdout.")] = False,
) -> None:
    """Estimate what a run needs, without weights: the model's own code on tensors that have no memory.

    Example: `dare memory llada-tiny --length 64 --batch 64 --algorithm d1`
    """
    at_least(1, length=length, batch=batch, gen_length=gen_length, micro_batch=micro_batch, group=group, lora=lora)
    values, sampling = _configuration(backbone)
    completion = gen_length or min(sampling.gen_length, length - 1)
    trains = _algorithm(algorithm, set_ or [])
    from dare.memory import MemoryPlanError, Plan, estimate

    defaults = {name: TrainSettings.model_fields[name].default for name in ("group_size", "micro_batch")}
    try:
        plan = Plan(
            batch=batch,
            length=length,
            completion=completion,
            micro_batch=micro_batch or defaults["micro_batch"],
            group=group or defaults["group_size"],
            trains=trains is not None,
            decodes=trains is None or trains.trains_on == "prompts",
            reference=trains is not None and "ref" in trains.requires,
            dtype=dtype,
            lora=LoraSettings(rank=lora) if lora else None,
            gradient_checkpointing=checkpointing,
            attention=attention,
        )
        found = estimate(values, plan, sampling)
    except MemoryPlanError as error:
        refuse(error)
    if json_:
        facts = {"always": found.always, "phases": found.phases, "assumptions": found.assumptions}
        typer.echo(json.dumps({"total": found.total, "deciding": found.deciding, **facts}))
    else:
        _show(found)


def _configuration(backbone: str) -> tuple[dict[str, Any], SamplingConfig]:
    """The content of config.json, and how rollouts are decoded."""
    from dare.families.checkpoint_files import CheckpointError, read_config
    from dare.families.published_config import ConfigError
    from dare.family import UnknownFamilyError, family_of
    from dare.weights.files import default_sampling

    path = Path(backbone).expanduser()
    try:
        if backbone in backbones():
            return read_config(backbone_directory(backbone)), backbones()[backbone].sampling
        if path.suffix == ".json" and path.is_file():
            values: Any = json.loads(path.read_text(encoding="utf-8"))
        elif path.is_dir():
            values = read_config(path)
        else:
            refuse(UnknownBackboneError(f"unknown backbone {backbone!r}; known: {', '.join(backbones())}"))
        if not isinstance(values, dict):
            refuse(f"{path} is no JSON object")
        family = family_of(values)
        return values, default_sampling(family.model_class(values).config_class(**values), family)
    except json.JSONDecodeError as error:
        refuse(f"{path} is no JSON: {error}")
    except (CheckpointError, ConfigError, UnknownBackboneError, UnknownFamilyError) as error:
        refuse(error)


def _algorithm(name: str | None, given: list[str]) -> Any:
    """The algorithm with its hyperparameters; None without a name."""
    if name is None:
        return None
    from dare.algorithm import AlgorithmError, load_algorithm

    try:
        return load_algorithm(AlgorithmSpec(name=name, hyperparameters=pairs(given)))
    except AlgorithmError as error:
        refuse(error)


def _show(found: Estimate) -> None:
    table = Table("when", "what", "GiB", box=None)
    table.columns[2].justify = "right"
    for what, size in found.always.items():
        if size:
            table.add_row("always", what, _gib(size))
    for phase, parts in found.phases.items():
        for what, size in parts.items():
            table.add_row(phase, what, _gib(size))
    table.add_row("[bold]peak[/]", f"[bold]{found.deciding}[/]", f"[bold]{_gib(found.total)}[/]")
    Console().print(table)
    for assumption in found.assumptions:
        say(f"Assumed: {assumption}.")


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}" if size >= GIB / 100 else f"{size / GIB:.4f}"
