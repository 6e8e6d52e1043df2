"""`python -m dare data`: benchmark data of tasks fetched, listed and verified; training data looked at and compared."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer
from rich.markup import escape
from rich.table import Table

from dare.catalog import UnknownBackboneError, backbone_directory, backbones
from dare.commands.terminal import at_least, console, refuse, say
from dare.commands.text import neutral

if TYPE_CHECKING:
    from dare.data import DataSet
    from dare.data.manifest import Manifest
    from dare.tasks import Task

FAILED = 1
LISTED = 10
KINDS = ("prompts", "corpus", "preferences", "mix", "file", "hub")

app = typer.Typer(no_args_is_help=True, help="Fetch, list and verify data; look at training data and compare it.")
Reference = Annotated[
    str, typer.Argument(metavar="DATA", help="A file, or what --data of `dare train` takes, such as mix:NAME.")
]
Folder = Annotated[Path | None, typer.Option("--data", envvar="DARE_DATA", help="Folder of published benchmark data.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object on stdout.")]


@app.command()
def inspect(
    reference: Reference,
    backbone: Annotated[
        str | None, typer.Option(help="Show the example through the chat template of this backbone.")
    ] = None,
    row: Annotated[int, typer.Option(help="Which kept row to show, from 1.")] = 1,
    manifest: Annotated[Path | None, typer.Option(help="Write the manifest here.")] = None,
    data: Folder = None,
    json_: AsJson = False,
) -> None:
    """Kind, columns, rows, what is set aside and why, hashes, and one row as the model will see it.

    Example: `dare data inspect pairs.parquet --backbone llada-tiny`
    """
    from dare.data import manifest as dataset_manifest

    at_least(1, row=row)
    if backbone is not None and backbone not in backbones():
        refuse(f"unknown backbone {backbone!r}; known: {', '.join(backbones())}")
    found = _load(reference, data)
    if row > len(found.examples):
        refuse(f"--row is {row}; {reference} has {len(found.examples)} rows to train on")
    written = found.manifest()
    shown = _example(found, row - 1, backbone)
    if manifest is not None:
        _write(lambda: dataset_manifest.write(written, manifest), manifest)
    if json_:
        typer.echo(json.dumps({**written.model_dump(mode="json"), "manifest": written.digest(), "example": shown}))
    else:
        _show(written, shown, row)


@app.command()
def overlap(
    reference: Reference,
    data: Folder = None,
    out: Annotated[Path | None, typer.Option(help="Write the whole report here.")] = None,
    json_: AsJson = False,
) -> None:
    """Which test items do the prompts of DATA give away? Exit code 1 when there are any."""
    from dare.data.overlap import compare, held_out, sentence
    from dare.data.preparation import asked

    report = compare(asked(_load(reference, data)), *held_out(data)).report
    if out is not None:
        _write(lambda: out.write_text(report.model_dump_json(indent=1) + "\n", encoding="utf-8"), out)
    if json_:
        typer.echo(report.model_dump_json())
    else:
        table = Table("task", "test items", "given away", box=None)
        for one in report.compared:
            table.add_row(one.task, str(one.items), str(one.contaminated))
        console.print(table)
        for item in report.contaminated[:LISTED]:
            share = f", {item.containment:.0%} of its n-grams" if item.match == "ngram" else ""
            say(f"{item.task} {item.item}: {item.match}{share}, row {', '.join(item.rows[:3])}")
        if report.absent:
            say(f"Not compared, since their test items are not here: {', '.join(report.absent)}.")
        if not report.contaminated:
            say(f"{sentence(report).capitalize()}.")
    if report.contaminated:
        raise typer.Exit(FAILED)


@app.command()
def verify(
    targets: Annotated[
        list[str] | None,
        typer.Argument(metavar="TASK...|MANIFEST", help="Tasks, or one manifest: data_manifest.json of a run."),
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="Every task whose data is here.")] = False,
    folder: Annotated[
        Path | None, typer.Option(help="Where a manifest's files are; by default beside it, else here.")
    ] = None,
    data: Folder = None,
) -> None:
    """Hash files again: those of tasks, or those of a manifest. Exit code 1 when one is missing, changed or reordered,
    which is named.

    Example: `dare data verify mmlu gsm8k --data data`
    """
    from dare.data import published
    from dare.data_record import DataRecordError
    from dare.tasks import load_task, task_names

    known = task_names()
    if targets and not every and len(targets) == 1 and targets[0] not in known:
        return _verify_manifest(Path(targets[0]), folder)
    if bool(targets) == every:
        refuse("name tasks or a manifest, or give --all")
    tasks = [load_task(name) for name in known] if every else [_task(name) for name in targets or ()]
    folder_of_data = _folder(data)
    failed = False
    for task in tasks:
        try:
            stand = published.state(task, folder_of_data)
            if every and stand in ("generated", "missing", "declared"):
                continue
            problems = published.problems(task, folder_of_data)
        except DataRecordError as error:
            refuse(error)
        for problem in problems:
            say(f"{task.name}: {problem}")
        if not problems:
            say(
                f"{task.name}: {_files(task)}"
                + (f", {n:,} items." if (n := published.rows(task, folder_of_data)) else ".")
            )
        failed = failed or bool(problems)
    if failed:
        raise typer.Exit(FAILED)
    return None


@app.command()
def fetch(
    names: Annotated[list[str], typer.Argument(metavar="TASK...", help="Tasks whose published files are wanted.")],
    data: Folder = None,
) -> None:
    """Get the published files of tasks into the data folder, and record what they are in its dare-data.json.

    A file that is there stays; one that an interruption cut short is gone on with. Example: `dare data fetch gsm8k`
    """
    from dare.data import published
    from dare.data_record import DataRecordError

    tasks = [_task(name) for name in names]
    if data is None:
        refuse("say where data belongs: --data FOLDER, or DARE_DATA")
    for task in tasks:
        if not task.files:
            say(f"{task.name} makes its items itself: there is nothing to fetch.")
            continue
        try:
            found = published.fetch(task, data, advance=_Progress())
        except (published.FetchError, DataRecordError) as error:
            _failed(error)
        if unreadable := published.problems(task, data):
            _failed(unreadable[0])
        new = sum(file.new for file in found)
        total = sum(file.bytes for file in found)
        say(f"{task.name}: files fetched: {new}, already here: {len(found) - new}; {total:,} bytes in {data}.")


@app.command(name="list")
def list_(data: Folder = None, json_: AsJson = False) -> None:
    """Every task: where its data stands on this machine, files, items, size, licence. Works without data.

    generated: needs none. verified: here, and byte for byte the published files. fetched: declared, here and recorded.
    declared: not fetched, so its bytes are not known yet. missing, changed: not here, or not what it was.
    """
    from dare.data import published
    from dare.data_record import DataRecordError
    from dare.tasks import load_task, task_names

    try:
        rows = [
            {
                "task": task.name,
                "state": published.state(task, data),
                "files": len(task.files),
                "items": published.rows(task, data),
                "bytes": published.size(task, data),
                "licence": task.licence,
            }
            for task in map(load_task, task_names())
        ]
    except DataRecordError as error:
        refuse(error)
    if json_:
        typer.echo(json.dumps(rows))
        return
    table = Table(*rows[0], box=None)
    for row in rows:
        table.add_row(
            *("" if value is None else f"{value:,}" if isinstance(value, int) else value for value in row.values())
        )
    console.print(table)


class _Progress:
    """A line for every fourth of a file that is larger than a few megabytes."""

    LARGE = 4_000_000

    def __init__(self) -> None:
        self._said: dict[str, int] = {}

    def __call__(self, name: str, here: int, total: int | None) -> None:
        if total and total > self.LARGE and (quarter := 4 * here // total) > self._said.get(name, 0):
            self._said[name] = quarter
            say(f"{name}: {here:,} of {total:,} bytes")


def _task(name: str) -> Task:
    from dare.tasks import UnknownTaskError, load_task

    try:
        return load_task(name)
    except UnknownTaskError as error:
        refuse(error)


def _files(task: Task) -> str:
    return f"its files ({len(task.files)}) are what they should be" if task.files else "generated"


def _folder(data: Path | None) -> Path | None:
    if data is not None and not data.is_dir():
        refuse(f"there is no folder of data {data}")
    return data


def _failed(error: object) -> NoReturn:
    say(error)
    raise typer.Exit(FAILED)


def _verify_manifest(manifest: Path, folder: Path | None) -> None:
    from dare.data import manifest as dataset_manifest
    from dare.data.files import DataError

    try:
        record = dataset_manifest.read(manifest)
    except DataError as error:
        refuse(error)
    beside = all((manifest.parent / file.path).is_file() for file in record.files)
    problems = dataset_manifest.verify(record, folder or (manifest.parent if beside else Path()))
    for problem in problems:
        say(problem)
    if problems:
        raise typer.Exit(FAILED)
    say(f"{len(record.files)} files are what {manifest.name} says." if record.files else "No file was read: generated.")


def _load(reference: str, data: Path | None) -> DataSet:
    """Data by reference; what has no kind is a file."""
    from dare.data import load_data_set
    from dare.data.files import DataError
    from dare.tasks import MissingDataError, UnknownSplitError, UnknownTaskError

    _folder(data)
    named = reference if reference.partition(":")[0] in KINDS else f"file:{reference}"
    try:
        return load_data_set(named, Path(), data)
    except (DataError, MissingDataError, UnknownSplitError, UnknownTaskError) as error:
        refuse(error)


def _example(data_set: DataSet, number: int, backbone: str | None) -> dict[str, Any]:
    """One row by its parts; with a backbone, the tokens of prompt and answers as its tokenizer writes them."""
    from dare.data.columns import JudgedItem
    from dare.data.corpus import Preference
    from dare.tasks import Demonstration, Dialogue

    example = data_set.examples[number]
    prompt: Dialogue
    answers: dict[str, str] = {}
    judged: dict[str, Any] = {}
    if isinstance(example, JudgedItem):
        prompt = example.item.prompt
        judged = {"task": example.task.name, "gold": dict(example.item.gold)}
    elif isinstance(example, Preference):
        prompt, answers = example.prompt, {"chosen": example.chosen, "rejected": example.rejected}
    else:
        assert isinstance(example, Demonstration)
        prompt, answers = example.prompt, {"answer": example.answer}
    if backbone is None:
        return {"id": data_set.ids[number], "prompt": prompt, **answers, **judged}
    from dare.family import load_family
    from dare.tokenizer import TokenizerError

    try:
        tokenizer = load_family(backbones()[backbone].family).load(backbone_directory(backbone)).tokenizer
        ids = {"prompt": tokenizer.prompt_ids(prompt)} | {n: tokenizer.answer_ids(text) for n, text in answers.items()}
    except (TokenizerError, UnknownBackboneError) as error:
        refuse(f"{backbone}: {error}")
    written = {name: "".join(tokenizer.pieces(row)) for name, row in ids.items()}
    return {"id": data_set.ids[number], **written, **judged, "tokens": {name: len(row) for name, row in ids.items()}}


def _show(manifest: Manifest, example: dict[str, Any], row: int) -> None:
    from dare.data.preparation import aside

    table = Table.grid(padding=(0, 2))
    facts = {
        "kind": manifest.kind,
        "columns": manifest.layout or "generated",
        "revision": manifest.revision,
        "rows": f"{manifest.rows:,}",
        "kept": f"{manifest.kept:,}" + (f", {manifest.repeated:,} of them repeated" if manifest.repeated else ""),
        "rows sha256": manifest.rows_sha256[:16],
        "manifest": manifest.digest()[:16],
        **{file.path: f"{file.bytes:,} bytes, sha256 {file.sha256[:16]}" for file in manifest.files},
    }
    for name, value in facts.items():
        if value is not None:
            table.add_row(escape(neutral(name)), escape(neutral(value)))
    console.print(table)
    if manifest.set_aside:
        say(f"{aside(manifest)}.")
        for one in manifest.set_aside[:LISTED]:
            say(f"  {one.place} (id {one.id}): {one.reason}")
    say(f"Row {row}:")
    for name, value in example.items():
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        say(f"  {name}: {text}")


def _write(write: Any, path: Path) -> None:
    try:
        write()
    except OSError as error:
        refuse(f"{path} cannot be written: {error.strerror}")
