"""vLLM, for autoregressive reference models only: it decodes none of our families. Never run against the engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from dare.sampling.engines import EngineDiedError, EngineReplyError
from dare.sampling.engines.capabilities import TABLE, ServedModel, Serving
from dare.sampling.engines.sampler import (
    Completion,
    EngineSampler,
    Request,
    check_arguments,
    import_engine,
    one_line,
)
from dare.sampling_config import SamplingConfig
from dare.types import Records


def plan(serving: Serving, config: SamplingConfig, record: frozenset[Records] = frozenset()) -> None:
    """UnsupportedRequestError unless the settings are left to right, a token a step."""
    serving.check(config, record)
    in_order = config.block_length == 1 or config.remasking == "sequential"
    if not in_order or config.steps_per_block != config.block_length or config.selector != "schedule":
        instead = "set block_length and steps_per_block to 1"
        raise serving.refusal("decodes left to right, a token a step", instead)


class VllmEngine(EngineSampler):
    """vLLM in this process. A token a forward: its step map and its number of forwards are known."""

    def __init__(self, module: Any, engine: Any, serving: Serving, config: SamplingConfig) -> None:
        super().__init__(serving, plan, config)
        self._module, self._engine = module, engine

    @classmethod
    def load(cls, checkpoint: Path, model: ServedModel, config: SamplingConfig, **engine_args: Any) -> VllmEngine:
        """Check, then load. `engine_args` are vLLM's own: `tensor_parallel_size`, `max_model_len`, ..."""
        module = import_engine("vllm")
        serving = Serving(TABLE["vllm"], module.__version__, model)
        plan(serving, config)
        ours = {"model": str(checkpoint), "skip_tokenizer_init": True}
        check_arguments(serving, engine_args, ours)
        try:
            engine = module.LLM(**ours, **engine_args)
        except Exception as error:  # whatever it raises has one name here
            raise EngineDiedError(f"vllm did not start ({one_line(error)}): see its log") from error
        return cls(module, engine, serving, config)

    def complete(self, request: Request) -> list[Completion]:
        """One call for all rows, each with a seed from its generator."""
        params = [
            self._module.SamplingParams(
                max_tokens=request.config.gen_length,
                temperature=request.config.temperature,
                seed=int(torch.randint(2**63 - 1, (), generator=generator)),
                stop_token_ids=list(self.serving.model.eos_ids),
                detokenize=False,
            )
            for generator in request.generators
        ]
        prompts = [{"prompt_token_ids": prompt} for prompt in request.prompts]
        try:
            answer = self._engine.generate(prompts, params, use_tqdm=False)
        except ValueError as error:
            raise EngineReplyError(f"vllm refused the request: {error}") from error
        except Exception as error:  # whatever it raises has one name here
            raise EngineDiedError(f"vllm failed during the request ({error}): see its log") from error
        return [_completion(row.outputs[0]) for row in answer]

    def close(self) -> None:
        """Drop the engine; vLLM ends its processes when the last reference goes."""
        self._engine = None


def _completion(found: Any) -> Completion:
    if found.finish_reason not in ("stop", "length"):
        raise EngineReplyError(f"vllm ended a row with {found.finish_reason!r}")
    ids = tuple(found.token_ids)
    return Completion(ids, tuple(range(1, len(ids) + 1)), forwards=len(ids))
