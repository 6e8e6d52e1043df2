"""What a request may say, in the shapes of OpenAI's API, and what it means for a diffusion model.

A field that cannot be honoured is refused unless it has the value that changes nothing. `extra` holds what OpenAI has
no word for: any field of SamplingConfig, `preset` with the name of published settings, and `return` with any of
"token_ids", "step_map", "nfe".
"""

from __future__ import annotations

import secrets
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from dare.policy import Policy, RequestError
from dare.sampling_config import SamplingConfig

RETURNED = ("token_ids", "step_map", "nfe")
MAX_STOPS, MAX_STOP_LENGTH = 16, 200
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "best_of": (None, 1),
    "echo": (None, False),
    "frequency_penalty": (None, 0),
    "function_call": (None, "none"),
    "functions": (None, []),
    "logit_bias": (None, {}),
    "logprobs": (None, False),
    "min_p": (None, 0),
    "presence_penalty": (None, 0),
    "repetition_penalty": (None, 1),
    "response_format": (None, {"type": "text"}),
    "suffix": (None, ""),
    "tool_choice": (None, "none", "auto"),
    "tools": (None, []),
    "top_logprobs": (None, 0),
}
"""Values with which a field that we do not have changes nothing."""
IGNORED = frozenset({"metadata", "parallel_tool_calls", "service_tier", "store", "user"})
REASONS = {
    "echo": "the prompt is not repeated; for its likelihood ask /v1/likelihood",
    "logprobs": "tokens decided together have no chain of log-probabilities; for choices ask /v1/likelihood",
    "top_logprobs": "tokens decided together have no chain of log-probabilities; for choices ask /v1/likelihood",
}


class Body(BaseModel):
    """What bodies have in common: unknown fields are looked at by `check_neutral`, numbers are finite."""

    model_config = ConfigDict(extra="allow", allow_inf_nan=False)

    model: str | None = None


class StreamOptions(BaseModel):
    """OpenAI's."""

    model_config = ConfigDict(extra="ignore")

    include_usage: bool = False


class Generation(Body):
    """Fields of both kinds of completion."""

    max_tokens: Annotated[int, Field(gt=0)] | None = None
    temperature: Annotated[float, Field(ge=0)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    top_k: Annotated[int, Field(ge=-1)] | None = None
    seed: int | None = None
    stop: str | list[str] | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    n: Annotated[int, Field(gt=0)] = 1
    extra: dict[str, Any] = {}

    @property
    def stops(self) -> tuple[str, ...]:
        """Stop strings, checked."""
        given = [self.stop] if isinstance(self.stop, str) else self.stop or []
        if len(given) > MAX_STOPS:
            raise RequestError(f"there are {len(given)} stop strings; at most {MAX_STOPS} are looked for")
        wrong = next((stop for stop in given if not 0 < len(stop) <= MAX_STOP_LENGTH), None)
        if wrong is not None:
            raise RequestError(f"a stop string has {len(wrong)} characters; it must have 1 to {MAX_STOP_LENGTH}")
        return tuple(given)

    @property
    def returned(self) -> frozenset[str]:
        """What is asked for beside the text."""
        given = self.extra.get("return", [])
        names = given if isinstance(given, list) else [given]
        unknown = next((name for name in names if name not in RETURNED), None)
        if unknown is not None:
            raise RequestError(f"extra.return has {unknown!r}; known: {', '.join(RETURNED)}")
        return frozenset(names)

    def private_seed(self) -> int:
        """The seed, or one that nobody knows."""
        return secrets.randbits(62) if self.seed is None else self.seed

    def decoding(self, policy: Policy) -> tuple[SamplingConfig, int]:
        """Settings for the sampler, and tokens at most.

        The window is `max_tokens` rounded up to whole blocks, unless `extra.gen_length` says otherwise. At temperature
        0 there is nothing to draw from, so that `top_p` and `top_k`, which clients send anyway, are left out.
        """
        settings = {name: value for name, value in self.extra.items() if name not in ("return", "preset")}
        base = self._base(policy, settings)
        if self.temperature is not None:
            settings["temperature"] = self.temperature
        if self.top_k == 1:
            settings["temperature"] = 0.0
        if settings.get("temperature", base.sampling.temperature) == 0:
            settings |= {"top_p": None, "top_k": None}
        else:
            settings |= {} if self.top_p is None else {"top_p": None if self.top_p == 1 else self.top_p}
            settings |= {} if self.top_k is None else {"top_k": self.top_k if self.top_k > 0 else None}
        if self.max_tokens is not None and "gen_length" not in settings:
            whole = base.sampling.block_length == base.sampling.gen_length  # one block, however long
            block = settings.get("block_length", 1 if whole else base.sampling.block_length)
            if not isinstance(block, int) or block < 1:
                raise RequestError(f"extra.block_length is {block!r}; it must be a whole number from 1")
            settings["gen_length"] = -(-self.max_tokens // block) * block
            base = self._base(policy, settings)
        config = base.configure(settings)
        return config, min(self.max_tokens or config.gen_length, config.gen_length)

    def _base(self, policy: Policy, settings: dict[str, Any]) -> Policy:
        preset = self.extra.get("preset")
        if preset is None:
            return policy
        if not isinstance(preset, str):
            raise RequestError(f"extra.preset is {preset!r}; it must be a name")
        return policy.with_preset(preset, settings)


class Completion(Generation):
    """POST /v1/completions. Prompts are text as it is or token ids, without a chat template."""

    prompt: str | list[str] | list[int] | list[list[int]]

    def prompts(self, policy: Policy) -> list[list[int]]:
        """Ids of every prompt."""
        if isinstance(self.prompt, str):
            return [policy.text(self.prompt)]
        if not self.prompt:
            raise RequestError("there is no prompt")
        if isinstance(self.prompt[0], int):
            return [[token for token in self.prompt if isinstance(token, int)]]
        return [
            policy.text(one) if isinstance(one, str) else list(one) for one in self.prompt if not isinstance(one, int)
        ]


class TextPart(BaseModel):
    """A part of a message's content; only text is understood."""

    model_config = ConfigDict(extra="forbid")

    type: Literal["text"]
    text: str


class ChatMessage(BaseModel):
    """One turn."""

    model_config = ConfigDict(extra="forbid")

    role: str
    content: str | list[TextPart]
    name: str | None = None

    def plain(self) -> dict[str, str]:
        """For the chat template."""
        text = self.content if isinstance(self.content, str) else "".join(part.text for part in self.content)
        return {"role": self.role, "content": text}


class Chat(Generation):
    """POST /v1/chat/completions. An assistant's message at the end is continued."""

    messages: Annotated[list[ChatMessage], Field(min_length=1)]
    max_completion_tokens: Annotated[int, Field(gt=0)] | None = None
    chat_template_kwargs: dict[str, Any] = {}

    def model_post_init(self, _: Any) -> None:
        """The newer name of `max_tokens` wins."""
        if self.max_completion_tokens is not None:
            self.max_tokens = self.max_completion_tokens

    def prompts(self, policy: Policy) -> list[list[int]]:
        """Ids of the dialogue."""
        return [policy.prompt([message.plain() for message in self.messages], **self.chat_template_kwargs)]


class Choice(BaseModel):
    """A continuation whose likelihood is asked for."""

    model_config = ConfigDict(extra="forbid")

    context: str | list[int] | list[ChatMessage] = ""
    """Text as it is, token ids, or messages for the chat template."""
    continuation: str | list[int]

    def pair(self, policy: Policy) -> tuple[list[int], list[int]]:
        """Ids of both."""
        after = policy.text(self.continuation) if isinstance(self.continuation, str) else self.continuation
        if not after:
            raise RequestError("a continuation has no tokens")
        if isinstance(self.context, str):
            return policy.text(self.context), after
        if all(isinstance(token, int) for token in self.context):
            return [token for token in self.context if isinstance(token, int)], after
        return policy.prompt([turn.plain() for turn in self.context if isinstance(turn, ChatMessage)]), after


class LikelihoodRequest(Body):
    """POST /v1/likelihood."""

    choices: Annotated[list[Choice], Field(min_length=1)]
    mc_samples: Annotated[int, Field(gt=0, le=4096)] = 128
    """Ways to hide tokens that are scored, each a forward; fewer where there are fewer ways, and then it is exact."""
    seed: int = 0


def check_neutral(body: Body) -> None:
    """Refuse a field that would change the answer if we had it."""
    for name, value in (body.model_extra or {}).items():
        if name in IGNORED or (name in NEUTRAL and any(value == harmless for harmless in NEUTRAL[name])):
            continue
        if name in NEUTRAL:
            why = REASONS.get(name, "this server has no such thing; leave it out")
            raise RequestError(f"{name} is {value!r}: {why}")
        raise RequestError(f"unknown field {name!r}; settings of the decoder belong into `extra`")


def check_model(body: Body, policy: Policy) -> None:
    """Refuse another model than the one that is served."""
    if body.model not in (None, policy.name):
        raise UnknownModelError(f"model {body.model!r} is not served here; this is {policy.name!r}")


def check_repeats(body: Generation, config: SamplingConfig, policy: Policy) -> None:
    """Refuse a seed that the engine takes no notice of: the same one would give other answers."""
    engine = policy.engine
    if body.seed is not None and config.temperature > 0 and engine is not None and not engine.serving.capability.seeded:
        raise RequestError(f"seed is {body.seed}, and {engine.name} takes none: leave it out, or set temperature 0")


class UnknownModelError(RequestError):
    """The request names another model."""
