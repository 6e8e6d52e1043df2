"""Answers in the shapes of OpenAI's API: whole and in chunks, for prompts and for dialogues."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, ClassVar
from uuid import uuid4

from dare.server.rows import Answered, total_forwards


class Shape:
    """The answer to one request. `nfe` in `usage` counts forwards of one row each, cache-writing ones included.

    Where they are not reported, `usage` has no `nfe`, and a choice that was to return it has null.
    """

    prefix: ClassVar[str]
    object: ClassVar[str]
    chunk_object: ClassVar[str]

    def __init__(self, model: str, returned: frozenset[str], prompt_tokens: int) -> None:
        self.prompt_tokens = prompt_tokens
        self._returned = returned
        self._head = {"id": f"{self.prefix}-{uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, answers: Sequence[Answered]) -> dict[str, Any]:
        """All rows at once."""
        choices = [
            {"index": index, **self.message(one.text), "finish_reason": one.reason, **self._extra(one)}
            for index, one in enumerate(answers)
        ]
        return {**self._head, "object": self.object, "choices": choices, "usage": self.usage(answers)}

    def chunk(self, index: int, text: str, first: bool) -> dict[str, Any]:
        """A piece of one row."""
        return self._chunk({"index": index, **self.delta(text, first), "finish_reason": None})

    def end(self, index: int, answer: Answered) -> dict[str, Any]:
        """Why a row has ended, and what was asked for beside its text."""
        return self._chunk(
            {"index": index, **self.delta(None, False), "finish_reason": answer.reason, **self._extra(answer)}
        )

    def usage_chunk(self, answers: Sequence[Answered]) -> dict[str, Any]:
        """The last chunk, when usage is asked for."""
        return {**self._head, "object": self.chunk_object, "choices": [], "usage": self.usage(answers)}

    def usage(self, answers: Sequence[Answered]) -> dict[str, int]:
        """Tokens, and forwards spent where they are known."""
        completion, forwards = sum(len(answer.ids) for answer in answers), total_forwards(answers)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": completion,
            "total_tokens": self.prompt_tokens + completion,
            **({} if forwards is None else {"nfe": forwards}),
        }

    def message(self, text: str) -> dict[str, Any]:
        """Where the text of a whole answer stands."""
        raise NotImplementedError

    def delta(self, text: str | None, first: bool) -> dict[str, Any]:
        """Where a piece of text stands; None for the end."""
        raise NotImplementedError

    def _chunk(self, choice: dict[str, Any]) -> dict[str, Any]:
        return {**self._head, "object": self.chunk_object, "choices": [choice]}

    def _extra(self, answer: Answered) -> dict[str, Any]:
        known = {"token_ids": answer.ids, "step_map": answer.step_map, "nfe": answer.nfe}
        return {"extra": {name: known[name] for name in sorted(self._returned)}} if self._returned else {}


class TextShape(Shape):
    """/v1/completions."""

    prefix, object, chunk_object = "cmpl", "text_completion", "text_completion"

    def message(self, text: str) -> dict[str, Any]:
        """Plain text."""
        return {"text": text, "logprobs": None}

    def delta(self, text: str | None, first: bool) -> dict[str, Any]:
        """Plain text."""
        return {"text": text or "", "logprobs": None}


class ChatShape(Shape):
    """/v1/chat/completions."""

    prefix, object, chunk_object = "chatcmpl", "chat.completion", "chat.completion.chunk"

    def message(self, text: str) -> dict[str, Any]:
        """The assistant's turn."""
        return {"message": {"role": "assistant", "content": text}, "logprobs": None}

    def delta(self, text: str | None, first: bool) -> dict[str, Any]:
        """A piece of the assistant's turn."""
        role = {"role": "assistant"} if first else {}
        return {"delta": {**role, **({} if text is None else {"content": text})}, "logprobs": None}
