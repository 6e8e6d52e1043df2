"""LMDeploy's server, PyTorch backend. Written from the source of 0.12.3 and 0.18.0; never run against the engine."""

from __future__ import annotations

import base64
import io
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any, Literal

from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from dare.sampling.engines import EngineError, EngineReplyError
from dare.sampling.engines.capabilities import OUR_DECODER, ServedModel, Serving
from dare.sampling.engines.sampler import Completion, EngineSampler, Request
from dare.sampling.engines.server import EngineServer
from dare.sampling_config import SamplingConfig
from dare.types import Records

Strategy = Literal["low_confidence_dynamic", "low_confidence_static", "sequential"]


@dataclass(frozen=True)
class LmdeployDecoder:
    """The fields of `PytorchEngineConfig` that decide how blocks are decoded, under their own names."""

    dllm_block_length: int
    dllm_unmasking_strategy: Strategy
    dllm_denoising_steps: int | None = None
    """None for the dynamic strategy only: the others divide by it."""
    dllm_confidence_threshold: float | None = None

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments of `PytorchEngineConfig`."""
        return {name: value for name, value in vars(self).items() if value is not None}

    def command(self, checkpoint: Path, *flags: str) -> list[str]:
        """The command that starts the server."""
        ours = [
            text for name, value in self.arguments().items() for text in ("--" + name.replace("_", "-"), str(value))
        ]
        return ["lmdeploy", "serve", "api_server", str(checkpoint), "--backend", "pytorch", *ours, *flags]


def plan(
    serving: Serving, config: SamplingConfig, record: frozenset[Records] = frozenset(), *, logprobs: bool = False
) -> LmdeployDecoder:
    """What to start LMDeploy with, or UnsupportedRequestError: to be asked before anything is loaded."""
    serving.check(config, record, logprobs=logprobs)
    block, steps = config.block_length, config.steps_per_block
    if config.remasking not in ("low_confidence", "sequential"):
        raise serving.refusal(f"ranks positions by confidence or from left to right (here {config.remasking!r})")
    if config.selector == "threshold":
        return LmdeployDecoder(block, "low_confidence_dynamic", dllm_confidence_threshold=config.threshold)
    if config.selector != "schedule":
        raise serving.refusal(f"knows no selector {config.selector!r}", f"set 'threshold', or {OUR_DECODER}")
    if block % steps:
        raise serving.refusal(f"commits equally many tokens a step, and {steps} steps do not divide {block} tokens")
    strategy: Strategy = "sequential" if config.remasking == "sequential" else "low_confidence_static"
    return LmdeployDecoder(block, strategy, dllm_denoising_steps=steps)


class LmdeployServer(EngineSampler):
    """A running `lmdeploy serve api_server`. It tells neither its version nor its settings: both are yours to give."""

    def __init__(
        self,
        url: str,
        serving: Serving,
        config: SamplingConfig,
        *,
        timeout: float = 3600.0,
        concurrency: int = 64,
        api_key: str | None = None,
    ) -> None:
        super().__init__(serving, plan, config)
        self._server = EngineServer("lmdeploy", url, timeout, api_key)
        self._concurrency = concurrency
        try:
            self._server.get("/health")
        except EngineError:
            self.close()
            raise

    def complete(self, request: Request) -> list[Completion]:
        """A request per row, many at once: the server batches them. The first failure cancels those not yet sent."""
        bodies = [request_body(prompt, request.config, self.serving.model) for prompt in request.prompts]
        pool = ThreadPoolExecutor(min(self._concurrency, len(bodies)))
        try:
            return [_completion(row) for row in pool.map(lambda body: self._server.post("/generate", body), bodies)]
        finally:
            pool.shutdown(wait=True, cancel_futures=True)

    def update_weights(self, weights: Mapping[str, Tensor]) -> None:
        """New weights under their published names, by CUDA handle: same machine, one device for the server (`--tp 1`).

        The answer says nothing about what arrived: run the probe afterwards.
        """
        for name, tensor in weights.items():
            if not tensor.is_cuda:
                raise self.serving.refusal(f"takes weights by CUDA handle, and {name} is on {tensor.device}", "move it")
        handles = [(name, reduce_tensor(tensor.detach())) for name, tensor in weights.items()]  # type: ignore[no-untyped-call]
        self._server.post("/update_weights", {"serialized_named_tensors": serialized(handles), "finished": True})

    def sleep(self, level: Literal[1, 2] = 2) -> None:
        """Give up the cache, and move the weights to the host (1) or drop them (2): update them before the next use."""
        self._server.post("/sleep", {}, level=str(level))

    def wakeup(self, *tags: Literal["weights", "kv_cache"]) -> None:
        """Take the memory back: `weights`, update them, then `kv_cache`. No tags: all of it."""
        self._server.post("/wakeup", {}, tags=list(tags))  # as a query: a body is not read
        asleep = self._server.get("/is_sleeping")["is_sleeping"]
        if asleep and "weights" not in tags:  # a tag that is not asleep is ignored, with status 200
            raise EngineReplyError(f"lmdeploy still sleeps after waking {tags or 'everything'}: wake the weights first")

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._server.close()


def request_body(prompt: list[int], config: SamplingConfig, model: ServedModel) -> dict[str, Any]:
    """One `/generate` request, in full, so that no default of the server or the checkpoint matters."""
    greedy = config.temperature == 0
    return {
        "input_ids": prompt,
        "max_tokens": config.gen_length,
        "temperature": 1.0 if greedy else config.temperature,
        "top_k": 1 if greedy else 0,  # 0 is the whole vocabulary
        "top_p": 1.0,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "stop_token_ids": list(model.eos_ids),
        "include_stop_str_in_output": True,  # without it the end of sequence is cut from the ids
        "skip_special_tokens": False,
        "stream": False,
    }


def serialized(handles: list[tuple[str, Any]]) -> str:
    """Names with what `reduce_tensor` gives: handles of memory, no data, so that the tensors must outlive the call."""
    buffer = io.BytesIO()
    ForkingPickler(buffer).dump(handles)
    return base64.b64encode(buffer.getvalue()).decode("ascii")


def _completion(row: Any) -> Completion:
    """`output_ids` and `meta_info`; `text` is not read."""
    try:
        ids, reason = tuple(row["output_ids"]), row["meta_info"]["finish_reason"]["type"]
    except (KeyError, TypeError) as error:
        raise EngineReplyError(f"lmdeploy returned no completion: {str(row)[:200]}") from error
    if reason not in ("stop", "length"):
        raise EngineReplyError(f"lmdeploy ended a row with {reason!r}: {row.get('text')}")
    return Completion(ids)
