"""`python -m dare diagnose`: how far each method pushes where the reward pulls, as a table, a file and a picture."""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from dare.commands.terminal import Counting, at_least, refuse, say
from dare.commands.text import neutral
from dare.spec import AlgorithmSpec

if TYPE_CHECKING:
    from dare.algorithm import Algorithm
    from dare.diagnosis.directions import Alignment

BAR = 7
EIGHTHS = " ▏▎▍▌▋▊▉█"


def diagnose(
    methods: Annotated[
        list[str] | None, typer.Argument(help="Built-in algorithms, or files with one each; all built-in by default.")
    ] = None,
    decoder: Annotated[
        list[str] | None,
        typer.Option(help="low-confidence, random-order or left-to-right; repeatable, all by default."),
    ] = None,
    tables: Annotated[int, typer.Option(help="Random table models, each with its own reward.")] = 30,
    scale: Annotated[
        float, typer.Option(help="Logits are this times a standard normal: larger is more certain.")
    ] = 1.0,
    rows: Annotated[int, typer.Option(help="Completions in a batch: more draw more hidden tokens.")] = 512,
    seed: int = 0,
    out: Annotated[
        Path | None, typer.Option(help="Write every cosine to this .json, or the table to this .csv.")
    ] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the table into this .svg.")] = None,
) -> None:
    """Compare the direction in which a method pushes with the one that raises the reward.

    The model is a table of 3 tokens in a window of 3, small enough to enumerate, so that the true policy gradient of a
    decoder is exact. A method's expected gradient comes out of its own code, run on a batch in which every way to
    decode occurs in its exact share. Their cosine is 1 where the method climbs straight towards more reward, 0 where
    its direction has nothing to do with it, negative where it loses reward.

    **How to read it.** Below 1, the score that the method differentiates is not the log-probability of this decoder.
    No method models how low-confidence decoding chooses positions; on the other two a trajectory score is exact.
    `scores alone` are the same cosine for four scores without any method around them.

    **What it does not say.** A table shares nothing between states, a network does, and states off the path may help
    it. The gradient is expected: how noisy one step is does not show. It is the first step, where policy and behaviour
    policy are one and no clip is active. The ranking need not be that of accuracies.

    A FILE.py is executed: use it on your own code.

    Example: `dare diagnose bgpo my_rule.py --decoder low-confidence --plot my_rule.svg`
    """
    at_least(1, tables=tables, rows=rows)
    if not 0 < scale <= 10:
        refuse(f"--scale is {scale:g}; it must be above 0 and at most 10")
    _check_targets(out, plot)
    decoders = _decoders(decoder or [])
    chosen, left_out = _methods(methods or [])
    from dare.diagnosis.directions import alignments, random_worlds, score_alignments
    from dare.executor import AlgorithmFaultError

    worlds = random_worlds(tables, scale, seed)
    found: list[Alignment] = []
    with Counting(len(chosen) * len(decoders) * tables, 0) as progress:
        try:
            for name, row in alignments(chosen, decoders, worlds, rows, seed):
                if row is None:
                    progress.advance(1, name)
                else:
                    found.append(row)
        except AlgorithmFaultError as error:
            refuse(error)
    found += score_alignments(decoders, worlds)
    conditions = f"{tables} random tables, logits {scale:g} × N(0, 1), 3 tokens, window 3, 8 of 27 sequences rewarded"
    Console().print(_table(found))
    for name, reason in left_out.items():
        say(f"{name} {reason}.")
    notes = [f"{conditions}."]
    for name, algorithm in chosen:
        if (asked := algorithm.rollout()) is not None and asked.sampler == "left_to_right":
            notes.append(f"{name} decodes left to right when it trains; elsewhere its score is on others' samples.")
    error_of_means = max((row.error for row in found if row.error == row.error), default=0.0)
    for note in notes:
        say(note)
    say("Above: mean ± standard deviation over tables.")
    say(f"The draw of hidden tokens leaves a standard error of {error_of_means:.3f} at most on a mean.")
    if out is not None:
        settings = {"tables": tables, "scale": scale, "rows": rows, "seed": seed}
        _write(out, _csv(found) if out.suffix == ".csv" else _json(found, settings, left_out))
    if plot is not None:
        from dare.diagnosis.plot import figure

        _write(plot, figure(found, notes))


def _check_targets(out: Path | None, plot: Path | None) -> None:
    """Refuse before minutes of work what could not be written after them."""
    for option, path, endings in (("--out", out, (".json", ".csv")), ("--plot", plot, (".svg",))):
        if path is None:
            continue
        if path.suffix not in endings:
            refuse(f"{option} is {path}; the name must end in {' or '.join(endings)}")
        if not path.parent.is_dir():
            refuse(f"{option} is {path}; there is no folder {path.parent}")


def _decoders(given: Sequence[str]) -> list[str]:
    from dare.diagnosis.decoders import DECODERS

    for name in given:
        if name not in DECODERS:
            refuse(f"unknown decoder {name!r}; known: {', '.join(DECODERS)}")
    return list(dict.fromkeys(given)) or list(DECODERS)


def _methods(given: Sequence[str]) -> tuple[list[tuple[str, Algorithm]], dict[str, str]]:
    """Methods that have a row, and why the others have none."""
    from dare.algorithm import AlgorithmError, algorithm_names, load_algorithm
    from dare.diagnosis.directions import unsuitable
    from dare.executor import AlgorithmFaultError

    chosen: list[tuple[str, Algorithm]] = []
    left_out: dict[str, str] = {}
    for name in dict.fromkeys(given or algorithm_names()):
        file = Path(name) if name.endswith(".py") else None
        if file is not None and not file.is_file():
            refuse(f"there is no file {file}")
        short = file.stem if file is not None else name
        try:
            spec = AlgorithmSpec(name=short, source="builtin" if file is None else "entry")
            algorithm = load_algorithm(spec, file)
            reason = unsuitable(algorithm)
        except (AlgorithmError, AlgorithmFaultError, ValueError) as error:
            refuse(f"{name}: {error}")
        if short in left_out or any(short == other for other, _ in chosen):
            refuse(f"two methods are called {short!r}; rename the file {name}")
        if reason is None:
            chosen.append((short, algorithm))
        else:
            left_out[short] = reason
    if not chosen:
        refuse("; ".join(f"{name} {reason}" for name, reason in left_out.items()))
    return chosen, left_out


def _table(found: Sequence[Alignment]) -> Table:
    """Methods from the best to the worst under the first decoder, then the scores."""
    from dare.diagnosis.directions import ranked

    decoders = list(dict.fromkeys(row.decoder for row in found))
    table = Table("method", *decoders, box=None, pad_edge=False)
    for column in table.columns:
        column.no_wrap = True
    at = {(row.method, row.decoder, row.exact): row for row in found}
    for exact in (False, True):
        if exact:
            table.add_row(Text("scores alone", style="dim"))
        for name in ranked(found, exact):
            table.add_row(neutral(name), *(_cell(at[name, decoder, exact]) for decoder in decoders))
    return table


def _cell(row: Alignment) -> Text:
    """A bar from 0 to 1, the mean, and the spread where there are several tables; a dash without a gradient."""
    if row.mean != row.mean:
        return Text("– no gradient", style="dim")
    eighths = round(min(max(row.mean, 0.0), 1.0) * BAR * 8)
    bar = "█" * (eighths // 8) + (EIGHTHS[eighths % 8] if eighths % 8 else "")
    cell = Text(f"{bar:<{BAR}} ", style="cyan" if row.exact else "blue")
    spread = f" ± {row.deviation:.2f}" if len(row.cosines) > 1 else ""
    return cell.append(f"{row.mean:.2f}{spread}", style="default")


def _csv(found: Sequence[Alignment]) -> str:
    import io

    text = io.StringIO(newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["method", "kind", "decoder", "mean", "standard_deviation", "drawing_error", "tables"])
    for row in found:
        numbers = (f"{value:.6f}" for value in (row.mean, row.deviation, row.error))
        writer.writerow([row.method, "score" if row.exact else "method", row.decoder, *numbers, len(row.cosines)])
    return text.getvalue()


def _json(found: Sequence[Alignment], settings: Mapping[str, float], left_out: Mapping[str, str]) -> str:
    """All cosines; null where a method has no gradient."""
    rows: list[dict[str, Any]] = [
        {
            "method": row.method,
            "kind": "score" if row.exact else "method",
            "decoder": row.decoder,
            "cosines": [None if value != value else value for value in row.cosines],
            "drawing_error": None if row.error != row.error else row.error,
        }
        for row in found
    ]
    return json.dumps({"settings": settings, "rows": rows, "left_out": left_out}, indent=1) + "\n"


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        refuse(f"{path} cannot be written: {error.strerror}")
    say(f"Wrote {path}.")
