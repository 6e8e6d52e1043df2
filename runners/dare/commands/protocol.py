"""`dare protocol`: by whose rules a task can be asked, and what is doubtful about them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
import yaml

from dare import protocols
from dare.catalog import UnknownBackboneError, backbone_directory, backbones
from dare.commands.terminal import refuse, say
from dare.commands.text import neutral
from dare.opencompass.job import UnknownConfigError, config_of
from dare.protocols import Asked, ProtocolError
from dare.protocols.lint import Finding, Reading, lint, template_in
from dare.tasks import MissingDataError, UnknownTaskError, task_names

app = typer.Typer(no_args_is_help=True, help="By whose rules a task is asked and scored.")
AsJson = Annotated[bool, typer.Option("--json", help="One JSON document.")]


@app.command("list")
def list_protocols(as_json: AsJson = False) -> None:
    """All protocols with the tasks and families that they are for."""
    here = set(task_names())
    rows = [
        {
            "name": name,
            "title": protocols.title_of(name),
            "source": protocols.source_of(name),
            "through": protocols.through_of(name),
            "families": list(protocols.families_of(name)),
            "tasks": [task for task, why in protocols.tasks_of(name).items() if task in here and why is None],
            "unknown": {task: why for task, why in protocols.tasks_of(name).items() if task in here and why},
        }
        for name in protocols.protocol_names()
    ]
    if as_json:
        typer.echo(json.dumps(rows, indent=1))
        return
    for row in rows:
        typer.echo(f"{row['name']:<20} {row['title']}")
        typer.echo(f"{'':<20} through {row['through']}; families: {', '.join(row['families'])}")
        typer.echo(f"{'':<20} tasks: {', '.join(row['tasks']) or 'none that are here'}")


@app.command("show")
def show_protocol(
    name: Annotated[str, typer.Argument(help="A protocol of `dare protocol list`.")],
    task: Annotated[str, typer.Option(help="A task, for example gsm8k.")],
    backbone: Annotated[str, typer.Option(help="Whose decoding and tokenizer.")] = "llada-tiny",
    data: Annotated[Path | None, typer.Option(envvar="DARE_DATA", help="Folder of published benchmark data.")] = None,
    as_json: AsJson = False,
) -> None:
    """Every field of a protocol for a task, its id, where each value comes from, and what is doubtful.

    The id is of exactly these items where the data are there. `dare protocol show llada --task gsm8k`
    """
    record = backbones().get(backbone)
    if record is None:
        refuse(f"unknown backbone {backbone!r}; known: {', '.join(backbones())}")
    try:
        asked = protocols.compose(name, task, record.family, record.sampling)
    except (ProtocolError, UnknownTaskError) as error:
        refuse(error)
    findings, why_not = None, None
    try:
        config_of(asked.protocol)
        asked, items = protocols.with_items(asked, data)
        findings = lint(asked, items, data, reading_of(backbone_directory(backbone)))
    except (MissingDataError, UnknownBackboneError, UnknownConfigError, ProtocolError) as error:
        why_not = str(error)
    if as_json:
        typer.echo(json.dumps(_as_json(asked, findings, why_not), indent=1))
        return
    typer.echo(neutral(as_yaml(asked)), nl=False)
    if findings is None:
        say(f"Cannot be run as things are: {why_not}")
    for finding in findings or ():
        say(f"doubtful ({finding.name}): {finding.sentence}")
    if findings == []:
        say("Nothing doubtful.")


def as_yaml(asked: Asked) -> str:
    """The protocol as YAML, each value with where it comes from."""
    protocol = asked.protocol.model_dump(mode="json")
    sampling = protocol.pop("sampling")
    lines = [(f"protocol: {asked.name}", protocols.title_of(asked.name)), (f"id: {asked.id}", "")]
    lines.append((f"through: {asked.through}", ""))
    lines += [(f"{key}: {_scalar(value)}", _origin(asked, key)) for key, value in protocol.items()]
    lines.append(("sampling:", ""))
    for key, value in sampling.items():
        said = "steps" if key == "steps_per_block" and "sampling.steps" in asked.origin else key
        origin = asked.origin.get(f"sampling.{said}", "one token a step" if key == "steps_per_block" else "default")
        lines.append((f"  {key}: {_scalar(value)}", origin))
    width = max(len(text) for text, _ in lines if len(text) < 60)
    return "".join(f"{text:<{width}}  # {origin}\n" if origin else f"{text}\n" for text, origin in lines)


def _origin(asked: Asked, key: str) -> str:
    """Where a value beside the decoding is from."""
    if key in asked.origin:
        return asked.origin[key]
    if key in ("task", "task_version"):
        return "the task"
    if key == "further_scorers":
        return "who asks, scores too"
    if key == "sample_steps_per_block" and asked.protocol.sample_steps_per_block is not None:
        return protocols.OWN
    return "default"


def reading_of(checkpoint: Path) -> Reading:
    """How a checkpoint reads prompts; no weight is opened."""
    from dare.policy import open_policy

    policy = open_policy(str(checkpoint), with_weights=False)
    return Reading(
        prompt_ids=policy.prompt,
        text_ids=policy.text,
        bos_id=getattr(policy.tokenizer, "bos_id", None),
        has_template=template_in(checkpoint),
        context=policy.context,
    )


def _as_json(asked: Asked, findings: list[Finding] | None, why_not: str | None) -> dict[str, object]:
    return {
        "name": asked.name,
        "id": asked.id,
        "through": asked.through,
        "protocol": asked.protocol.model_dump(mode="json"),
        "origin": dict(asked.origin),
        "findings": None if findings is None else [finding._asdict() for finding in findings],
        "not_looked_at": why_not,
    }


def _scalar(value: object) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).removesuffix("\n").removesuffix("\n...")
