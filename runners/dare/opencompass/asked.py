"""One task of the child's job: its items as OpenCompass's datasets have them, its prompts, its answers by now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from dare.opencompass.configs import StockConfig
from dare.sampling_config import SamplingConfig
from dare.spec import Prediction, TaskProtocol
from dare.tasks import Dialogue, Item, Task


@dataclass(frozen=True)
class Part:
    """One of OpenCompass's datasets: all of a task, or one subject of it."""

    config: Any
    """OpenCompass's description of it."""
    items: Sequence[Item]
    """Ours, row by row, without those behind the protocol's limit."""
    prompts: Sequence[Dialogue]
    texts: Sequence[Sequence[str]] = ()
    """Of a perplexity task: one whole text for each choice of each item."""
    keys: Sequence[str] | None = None
    """The evaluator's own names of the rows."""


@dataclass
class Asked:
    """One task of the job, and what is known of it by now."""

    protocol: TaskProtocol
    task: Task
    stock: StockConfig | None
    parts: Sequence[Part]
    dropped: Sequence[str]
    prompt_hash: str
    known: dict[tuple[str, int], Prediction] = field(default_factory=dict)
    asked: int = 0
    resumed: int = 0

    @cached_property
    def prompts(self) -> Mapping[str, Dialogue]:
        """By item."""
        return {i.id: prompt for part in self.parts for i, prompt in zip(part.items, part.prompts, strict=True)}

    @cached_property
    def texts(self) -> Mapping[str, Sequence[str]]:
        """By item, of a perplexity task."""
        return {
            i.id: texts for part in self.parts if part.texts for i, texts in zip(part.items, part.texts, strict=True)
        }

    @property
    def kind(self) -> Literal["generate", "likelihood"]:
        """What is asked for."""
        return "likelihood" if self.task.kind == "likelihood" else "generate"

    @property
    def name(self) -> str:
        """In messages."""
        return self.protocol.task if self.stock is None else f"{self.protocol.task} ({self.stock.name})"

    @property
    def wanted(self) -> list[tuple[str, int]]:
        """Item and sample, greedy answers of all items first."""
        return [(item, sample) for sample in range(self.protocol.samples + 1) for item in self.prompts]

    def sampling(self, sample: int) -> SamplingConfig:
        """How this answer is decoded."""
        return self.protocol.sampling if sample == 0 else self.protocol.sampled

    @cached_property
    def items(self) -> Mapping[str, Item]:
        """By id."""
        return {item.id: item for part in self.parts for item in part.items}

    @cached_property
    def sent(self) -> Mapping[str, Dialogue]:
        """What the hash of an answer's prompt is about, by item: for a perplexity, all of its texts."""
        return {item: "\n\n".join(texts) for item, texts in self.texts.items()} if self.texts else self.prompts
