"""The sections of the rules page, made from a track's own file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from dare.sampling_config import SamplingConfig
from dare.spec import LoraSettings, TrainSettings
from dare.tasks import load_task
from dare_platform.tracks import BackboneRules, Example, Track
from leaderboard import quantities
from leaderboard.plain_tables import Text, plain_table

_ROLES = {
    "ranked": "in the mean gain",
    "shown": "shown, not in the mean",
    "transfer": "shown where its data is at hand, not in the mean",
}


def state_line(track: Track, digest: str) -> str:
    """Open or closed, and the hash of the rules."""
    return (
        f'<div class="dare"><p class="second">{escape(track.title)} · {escape(track.state)} · rules '
        f"<code>{escape(digest)}</code> · device {escape(track.device)}</p></div>"
    )


def tasks(track: Track) -> str:
    """The columns of the board, and below them what chance means there and what a reader must know."""
    rows = []
    notes = []
    for column in track.tasks:
        task = load_task(column.task)
        items = f"first {quantities.count(column.limit)}" if column.limit else "all"
        rows.append(
            (
                Text(task.title),
                Text(_ROLES[column.role]),
                Text(f"{items}, version {task.version}"),
                Text(quantities.share(task.chance_floor), number=True),
            )
        )
        words = " ".join((f"Chance: {task.chance_procedure}.", *task.notes))
        notes.append(f"<p><b>{escape(task.title)}.</b> {escape(words)}</p>")
    notes.append(f"<p><b>Asked and scored.</b> {escape(asked_and_scored(track))}</p>")
    table = plain_table(("Task", "Role", "Items", "Chance, per cent"), rows, "Tasks of this track")
    return f'{table}<div class="dare prose">{"".join(notes)}</div>'


def asked_and_scored(track: Track) -> str:
    """By whose rules tasks are asked, and whose word the board shows."""
    by = "in each task's own words" if track.protocol is None else f"by protocol {track.protocol}"
    through = " through OpenCompass" if track.evaluates_through == "opencompass" else ""
    others = [name for name in track.further_scorers if name != track.scorer]
    also = f"; the same stored answers are also scored by {', '.join(others)}" if others else ""
    return f"Tasks are asked {by}{through}. The board shows the word of scorer {track.scorer}{also}."


def sampling(config: SamplingConfig) -> str:
    """A decoding in one line."""
    parts = [
        f"{config.gen_length} tokens",
        f"blocks of {config.block_length}",
        f"{config.steps_per_block} steps a block",
        "greedy" if config.temperature == 0 else f"temperature {config.temperature:g}",
        f"remasking {config.remasking}",
    ]
    said = ("gen_length", "block_length", "steps_per_block", "temperature", "remasking")
    others = config.model_dump(exclude_defaults=True, exclude=set(said))
    parts += [f"{name.replace('_', ' ')} {_value(value)}" for name, value in others.items()]
    return ", ".join(parts)


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.8f}".rstrip("0").rstrip(".")
    if isinstance(value, (tuple, list)):
        return ", ".join(_value(part) for part in value)
    if isinstance(value, LoraSettings):
        return f"rank {value.rank}, scale {value.scale:g}"
    return "no" if value is None else str(value)


def _by_backbone(track: Track, what: Callable[[BackboneRules], str]) -> str:
    """One value where all backbones share it, otherwise each with its name."""
    values = {name: what(rules) for name, rules in track.backbones.items()}
    if len(set(values.values())) == 1:
        return next(iter(values.values()))
    return "; ".join(f"{name}: {value}" for name, value in values.items())


def fixed_settings(track: Track) -> str:
    """Setting, value for methods that learn from rewards and from demonstrations, and why."""

    def row(name: str, rewards: str, demonstrations: str, key: str) -> tuple[Text, Text, Text, Text]:
        return Text(name), Text(rewards), Text(demonstrations), Text(track.fixed_because.get(key, ""), mark="second")

    def setting(name: str) -> tuple[Text, Text, Text, Text]:
        return row(
            name.replace("_", " ") + (" (open to entries)" if name in track.open_settings else ""),
            _by_backbone(track, lambda rules: _value(getattr(rules.prompts.settings, name))),
            _by_backbone(track, lambda rules: _value(getattr(rules.demonstrations.settings, name))),
            name,
        )

    rows = [
        row(
            "training data",
            _by_backbone(track, lambda rules: rules.prompts.data),
            _by_backbone(track, lambda rules: rules.demonstrations.data),
            "data",
        ),
        row("rollouts", _by_backbone(track, lambda rules: sampling(rules.rollout)), "—", "rollout"),
        row("evaluation, greedy", _by_backbone(track, lambda rules: sampling(rules.greedy)), "the same", "greedy"),
        row(
            "evaluation, sampled",
            _by_backbone(
                track,
                lambda rules: (
                    f"{rules.samples} completions an item, temperature {rules.sample_temperature:g}, steps as rollouts"
                ),
            ),
            "the same",
            "samples",
        ),
        *(setting(name) for name in TrainSettings.model_fields),
    ]
    heads = ("Setting", "Learning from rewards", "Learning from demonstrations", "Why")
    return plain_table(heads, rows, "What this track fixes")


def budgets(track: Track) -> str:
    """When training ends, per backbone and kind of data."""
    rows = []
    for backbone, rules in track.backbones.items():
        for kind, recipe in (("rewards", rules.prompts), ("demonstrations", rules.demonstrations)):
            budget = recipe.budget
            forwards = "—" if budget.gradient_forwards is None else quantities.count(budget.gradient_forwards)
            rows.append(
                (
                    Text(f"{backbone}, {kind}"),
                    Text(quantities.count(budget.optimiser_steps), number=True),
                    Text(forwards, number=True),
                    Text(quantities.duration(budget.wall_seconds), number=True),
                )
            )
    heads = ("Backbone, learns from", "Optimiser steps at most", "Gradient-carrying forwards", "Clock, a guard")
    return plain_table(heads, rows, "Budgets")


def seeds(track: Track) -> str:
    """Which seeds are run, and how many a rank needs."""
    listed = ", ".join(str(seed) for seed in track.seeds)
    return (
        f"Each method is trained once for each of the seeds {listed} on each of its backbones; "
        f"{track.seeds_required} finished seeds are needed for a place on the board."
    )


def examples(found: Sequence[Example], allowed: bool) -> str:
    """Each rule with a few lines of code."""
    mark, word, tone = ("✓", "allowed", "positive") if allowed else ("✕", "not allowed", "attention")
    blocks = [
        f'<p><span class="{tone}" aria-hidden="true">{mark}</span> <span class="sr">{word}: </span>'
        f'{escape(example.rule)}</p><pre class="log" tabindex="0">{escape(example.example)}</pre>'
        for example in found
    ]
    return f'<div class="dare">{"".join(blocks)}</div>'
