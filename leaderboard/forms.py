"""What a form shows: problems as one list, settings against their defaults, what the button will start."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape

from dare import catalog
from dare.source import AlgorithmSource
from dare.spec import HyperparameterValue
from dare_platform.entry_settings import SettingView
from dare_platform.models import Visibility
from dare_platform.tracks import Track
from dare_platform.uploads import UploadReport
from dare_platform.views import Ending
from leaderboard import quantities, texts
from leaderboard.plain_tables import Text, plain_table

BECOMES: Mapping[Visibility, str] = {
    "public": "Results, code and settings become public on this site.",
    "anonymous": "Results become public under this name; you, and the code of a file of yours, are not shown.",
    "private": "Nobody sees it but you and the operators of this site; it is on no board.",
}
"""What is said of a submission before the button is pressed."""


def form_messages(messages: Sequence[str], first_is_new: bool) -> str:
    """All problems at once, in file order. `code` in backquotes is set as code; everything else is escaped."""
    items = [
        f"<li{' role=' + chr(34) + 'alert' + chr(34) if first_is_new and place == 0 else ''}>{with_code(message)}</li>"
        for place, message in enumerate(messages)
    ]
    return f'<div class="dare"><ul class="messages">{"".join(items)}</ul></div>'


def with_code(text: str) -> str:
    """Escaped text in which what stands in backquotes is code and what stands in double asterisks is bold."""
    pieces = text.split("`")
    if len(pieces) % 2 == 0:
        return escape(text)
    html = []
    for place, piece in enumerate(pieces):
        if place % 2:
            html.append(f"<code>{escape(piece)}</code>")
        else:
            bold = escape(piece).split("**")
            html.append(
                "".join(f"<b>{part}</b>" if i % 2 else part for i, part in enumerate(bold))
                if len(bold) % 2
                else escape(piece)
            )
    return "".join(html)


def setting_text(value: HyperparameterValue) -> str:
    """A value as YAML would have it."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def settings_table(settings: Sequence[SettingView]) -> str:
    """Name, default, yours; what was changed is marked in words."""
    if not settings:
        return f'<div class="dare"><p class="second">{escape(texts.WITHOUT_SETTINGS)}</p></div>'
    rows = [
        (
            Text(setting.name, code=True),
            Text(setting_text(setting.default)),
            Text(setting_text(setting.value) + (" · changed" if setting.changed else "")),
            Text(setting.help, mark="second"),
        )
        for setting in settings
    ]
    return plain_table(("Setting", "Default", "Yours", "Meaning"), rows, "Hyperparameters: default and yours")


def ending(how: Ending) -> str:
    """Why a run failed: what happened, who pays, what to do next."""
    return (
        f'<div class="dare"><div class="ending"><b>{escape(how.cause.replace("_", " "))}:</b> '
        f"{with_code(how.sentence)} {escape(texts.who_pays(how.charged))}<br>{with_code(how.next_step)}</div></div>"
    )


def refused_backbones(track: Track, source: AlgorithmSource | None) -> dict[str, str]:
    """Backbones of a track that cannot be chosen, each with its reason."""
    refused: dict[str, str] = {}
    for name in track.backbones:
        record = catalog.backbones().get(name)
        if record is None:
            refused[name] = f"Backbone `{name}` cannot be chosen: it is not on this machine."
        elif source is not None and (problem := catalog.unsupported(source, record)):
            refused[name] = problem.text
        elif source is not None and (text := track.without_data(source.class_name, source.trains_on, name)):
            refused[name] = text
    return refused


def read_line(report: UploadReport) -> str:
    """What was read: size, hash, class, how many hyperparameters."""
    parts = [quantities.size(report.bytes)]
    if report.sha256:
        parts.append(f'sha256 <code title="{escape(report.sha256)}">{escape(report.sha256[:8])}</code>')
    if report.source is not None:
        parts.append(f"class <code>{escape(report.source.class_name)}</code>")
        parts.append(quantities.plural(len(report.source.hyperparameters), "hyperparameter"))
    mark = '<span class="positive" aria-hidden="true">✓</span> ' if report.source is not None else ""
    return f'<div class="dare"><p>{mark}read · {" · ".join(parts)}</p></div>'


def what_you_get(report: UploadReport, track: Track, seen_by: Visibility = "public") -> str:
    """How many runs of each kind, and the budget of a training run. Markdown."""
    parts = []
    if report.train_runs:
        parts.append(quantities.plural(report.train_runs, "training run"))
    parts.append(quantities.plural(report.evaluate_runs, "evaluation"))
    sentence = f"**{' and '.join(parts)}**, {quantities.plural(len(track.seeds), 'seed')} a backbone."
    if report.check_runs:
        sentence += f" Before that, {quantities.plural(report.check_runs, 'check')} on a tiny backbone, free of charge."
    if report.submission is not None and report.train_runs:
        trains_on = report.source.trains_on if report.source is not None else "prompts"
        recipes = [track.rules_of(record.name).recipe_for(trains_on) for record in report.submission.backbones]
        budgets = {(r.budget.optimiser_steps, r.budget.gradient_forwards) for r in recipes if r is not None}
        for steps, forwards in sorted(budgets, key=str):
            sentence += f" Each training run makes at most {quantities.plural(steps, 'optimiser step')}"
            if forwards is not None:
                sentence += f" and {quantities.plural(int(forwards), 'gradient-carrying forward')} per completion"
            sentence += "."
    return f"{sentence} {BECOMES[seen_by]}"
