"""OpenCompass's side of a model: it hears every prompt and is asked for every perplexity, and decides nothing.

Prompts are heard first and asked for afterwards, of all datasets together and in our own order, so that the server's
batches are full and an answer is stored under its item the moment it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from opencompass.models.base import BaseModel, LMTemplateParser
from opencompass.models.base_api import APITemplateParser

from dare.opencompass.prompts import as_dialogue
from dare.tasks import Dialogue

CHAT = {
    "round": [{"role": "HUMAN", "api_role": "HUMAN"}, {"role": "BOT", "api_role": "BOT", "generate": True}],
    "reserved_roles": [{"role": "SYSTEM", "api_role": "SYSTEM"}],
}


class DualParser:
    """Messages for generation, plain text for perplexity, which is all that its inferencer can take."""

    def __init__(self) -> None:
        self._messages, self._text = APITemplateParser(CHAT), LMTemplateParser(None)

    def parse_template(self, template: Any, mode: str) -> Any:
        """OpenCompass's own parsing."""
        return (self._messages if mode == "gen" else self._text).parse_template(template, mode)


class Recorder(BaseModel):  # type: ignore[misc]  # untyped package
    """Keeps what it is asked. `chat` says whether prompts come as messages; `perplexities` are given in the order in
    which `texts` were recorded, once they are known."""

    def __init__(self, chat: bool, perplexities: Sequence[float] | None = None) -> None:
        super().__init__(path="")
        self.template_parser = DualParser() if chat else LMTemplateParser(None)
        self.prompts: list[Dialogue] = []
        self.texts: list[str] = []
        self._perplexities = None if perplexities is None else list(perplexities)

    def generate(self, inputs: Sequence[Any], max_out_len: int, **_: Any) -> list[str]:
        """No answer yet. A configuration's `max_out_len` is not used: the length is the protocol's."""
        self.prompts += [as_dialogue(one) for one in inputs]
        return [""] * len(inputs)

    def get_ppl(self, inputs: Sequence[str], mask_length: Sequence[int] | None = None) -> torch.Tensor:
        """Zeros while they are only heard."""
        if mask_length is not None:
            raise NotImplementedError("perplexities after a normalising text are not asked for by any configuration")
        first = len(self.texts)
        self.texts += inputs
        known = self._perplexities
        return torch.zeros(len(inputs)) if known is None else torch.tensor(known[first : len(self.texts)]).double()

    def get_token_len(self, prompt: str) -> int:
        """Words: nothing is cut by it here, since no `max_seq_len` is given, and OpenCompass's bits per byte, which it
        goes into, are not read."""
        return len(prompt.split())
