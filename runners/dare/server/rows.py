"""What waits for the model: a row to decode with its own end, or continuations to score. Decided without a thread."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Literal

import torch

from dare.commands.text import REPLACEMENT
from dare.family import Tokenizer
from dare.likelihood import Likelihood, alike, log_likelihoods
from dare.policy import Policy, recorded, recorded_steps
from dare.sampling_config import SamplingConfig
from dare.types import Frame, Samples

Reason = Literal["stop", "length"]


class AbandonedError(RuntimeError):
    """Nobody waits any longer for any row of the batch."""


@dataclass(frozen=True)
class Cut:
    """An answer as far as it is settled, and why it ends there; `reason` is None while it may go on."""

    text: str
    tokens: int
    reason: Reason | None


def cut(tokenizer: Tokenizer, ids: Sequence[int], eos_ids: Sequence[int], stops: Sequence[str], limit: int) -> Cut:
    """Read settled tokens: up to the first end of sequence, before a stop string, at most `limit` tokens.

    Of several stop strings the one that is complete first counts, so that it does not matter how many tokens settle at
    once.
    """
    kept = list(ids[:limit])
    end = next((place + 1 for place, token in enumerate(kept) if token in eos_ids), None)
    kept = kept[:end]
    text = tokenizer.decode(kept)
    found = [(place + len(stop), place) for stop in stops if (place := text.find(stop)) >= 0]
    if found:
        while any(stop in tokenizer.decode(kept[:-1]) for stop in stops):
            kept.pop()
        return Cut(text[: min(found)[1]], len(kept), "stop")
    if end is not None:
        return Cut(text, len(kept), "stop")
    return Cut(text, len(kept), "length" if len(kept) == limit else None)


def certain(text: str, stops: Sequence[str]) -> str:
    """The beginning of an unfinished text that no later token can take back: no half character, no half stop string."""
    text = text.rstrip(REPLACEMENT)
    held = max((n for stop in stops for n in range(1, len(stop)) if text.endswith(stop[:n])), default=0)
    return text[: len(text) - held]


@dataclass(frozen=True)
class Answered:
    """What became of a row."""

    text: str
    ids: tuple[int, ...]
    """Of the answer, its end of sequence included."""
    step_map: tuple[int, ...] | None
    nfe: int | None
    """None, both, where what decodes does not report them."""
    reason: Reason


@dataclass(eq=False)
class DecodedRow:
    """One answer to one prompt. `tell` is called from the model's thread with every new piece of certain text."""

    prompt: Sequence[int]
    config: SamplingConfig
    generator: torch.Generator
    stops: tuple[str, ...]
    limit: int
    """Tokens at most; the window may be longer."""
    tell: Callable[[str], None] | None = None
    future: Future[Answered] = field(default_factory=Future)
    abandoned: bool = False
    _answered: Answered | None = None
    _read: int = 0
    _told: int = 0

    @property
    def kind(self) -> Hashable:
        """Rows of one kind can be decoded together."""
        return self.config

    def read(self, policy: Policy, ids: Sequence[int], step_map: Sequence[int], nfe: int, over: bool) -> None:
        """Take note of the settled tokens: tell what is new, and notice the end."""
        if self._answered is not None or (len(ids) == self._read and not over):
            return
        self._read = len(ids)
        now = cut(policy.backbone.tokenizer, ids, policy.backbone.eos_ids, self.stops, self.limit)
        if now.reason is not None or over:
            kept = slice(0, now.tokens)
            steps = recorded_steps(step_map[kept])
            self._answered = Answered(now.text, tuple(ids[kept]), steps, recorded(nfe), now.reason or "length")
        self._tell(now.text if self._answered is not None else certain(now.text, self.stops))

    def finish(self) -> None:
        """Hand over what was read."""
        if self._answered is not None:
            self.future.set_result(self._answered)

    @property
    def needs_more(self) -> bool:
        """Whether somebody waits for tokens that are not decided yet."""
        return self._answered is None and not self.abandoned

    def _tell(self, text: str) -> None:
        if self.tell is not None and len(text) > self._told:
            self.tell(text[self._told :])
            self._told = len(text)


def decode(policy: Policy, rows: Sequence[DecodedRow]) -> int | None:
    """Decode rows of one kind together and finish them; the forwards spent, or None where they are not reported.

    Ends early when no row needs more: a row that has what it needs is finished with the forwards it had cost by then,
    whatever its batch goes on doing. An engine cannot be watched, so that its rows all come at once.
    """

    def watch(frame: Frame) -> None:
        settled, nfe = frame.settled.tolist(), frame.nfe.tolist()
        for place in frame.rows.tolist():
            row = rows[place]
            if row.needs_more:
                columns = slice(len(row.prompt), settled[place])
                row.read(
                    policy,
                    frame.ids[place, columns].tolist(),
                    frame.step_map[place, columns].tolist(),
                    nfe[place],
                    False,
                )
        if not any(row.needs_more for row in rows):
            raise AbandonedError

    try:
        samples = policy.sample(
            [row.prompt for row in rows],
            rows[0].config,
            [row.generator for row in rows],
            watch=watch if policy.engine is None else None,
        )
        _read_samples(policy, rows, samples)
    except AbandonedError:
        pass
    for row in rows:
        row.finish()
    return total_forwards([row.future.result() for row in rows if row.future.done()])


def total_forwards(answers: Sequence[Answered]) -> int | None:
    """Forwards spent on all; None where they are not reported for each of them."""
    spent = [answer.nfe for answer in answers]
    return None if None in spent else sum(nfe for nfe in spent if nfe is not None)


def _read_samples(policy: Policy, rows: Sequence[DecodedRow], samples: Samples) -> None:
    for place, row in enumerate(rows):
        decided = samples.window[place] & (samples.step_map[place] != 0)
        ids, steps = samples.ids[place][decided].tolist(), samples.step_map[place][decided].tolist()
        row.read(policy, ids, steps, int(samples.nfe[place]), True)


@dataclass(eq=False)
class ScoredPairs:
    """Continuations whose likelihood is asked for, all of one request."""

    pairs: Sequence[tuple[Sequence[int], Sequence[int]]]
    mc_samples: int
    seed: int
    future: Future[list[Likelihood]] = field(default_factory=Future)
    abandoned: bool = False

    @property
    def kind(self) -> Hashable:
        """Never joined with another request: its views fill batches of their own."""
        return self


def score(policy: Policy, asked: ScoredPairs, batch: int) -> int:
    """Score the pairs of one request, those of equal length together; the forwards spent."""
    found: dict[int, Likelihood] = {}
    for group in alike(asked.pairs):
        if asked.abandoned:
            return sum(likelihood.forwards for likelihood in found.values())
        pairs = [asked.pairs[index] for index in group]
        likelihoods = log_likelihoods(policy.backbone, pairs, asked.mc_samples, asked.seed, batch)
        found.update(zip(group, likelihoods, strict=True))
    asked.future.set_result([found[index] for index in range(len(asked.pairs))])
    return sum(likelihood.forwards for likelihood in found.values())
