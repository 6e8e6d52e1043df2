"""`python -m dare`: run a job directory, and the daily loop without platform or database.

Exit codes: 0 succeeded, 1 the run failed (its result says why), 2 the request makes no sense, 130 interrupted.
"""

from __future__ import annotations

import sys

import typer

from dare.commands import (
    answering,
    backbone,
    check,
    data,
    diagnose,
    evaluate,
    memory,
    new,
    package,
    pretrain,
    protocol,
    recipe,
    running,
    second_opinion,
    train,
)
from dare.commands.terminal import refuse
from dare.versions import VersionError, require_declared

app = typer.Typer(
    no_args_is_help=True, add_completion=False, rich_markup_mode="markdown", pretty_exceptions_enable=False
)


@app.callback()
def gate() -> None:
    """Run a job directory, and the daily loop without platform or database."""
    try:
        require_declared()
    except VersionError as error:
        refuse(error)


app.command("run")(running.run_directory)
app.command()(train.train)
app.command()(evaluate.evaluate)
app.command()(evaluate.rescore)
app.command()(second_opinion.second_opinion)
app.command()(check.check)
app.command()(pretrain.pretrain)
answering.add_to(app)
app.command()(memory.memory)
app.command()(diagnose.diagnose)
app.command()(new.new)
app.command()(package.package)
app.add_typer(backbone.app, name="backbone")
app.add_typer(data.app, name="data")
app.add_typer(protocol.app, name="protocol")
app.add_typer(recipe.app, name="recipe")

if __name__ == "__main__":
    app()
    sys.exit(0)
