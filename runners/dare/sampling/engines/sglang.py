"""SGLang, offline and as a server. Written from the source of 0.5.9 and 0.5.23; never run against the engine."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from torch import Tensor

from dare.sampling.engines import EngineDiedError, EngineError, EngineReplyError
from dare.sampling.engines.capabilities import OUR_DECODER, TABLE, Capability, ServedModel, Serving
from dare.sampling.engines.sampler import (
    Completion,
    EngineSampler,
    Request,
    check_arguments,
    import_engine,
    one_line,
)
from dare.sampling.engines.server import EngineServer
from dare.sampling_config import SamplingConfig
from dare.types import Records

CONFIG_FILE = "dllm-algorithm.yaml"
_NEVER = 1.0  # a threshold that no confidence exceeds: one token a step


@dataclass(frozen=True)
class SglangDecoder:
    """`--dllm-algorithm` and the mapping in the file of `--dllm-algorithm-config`."""

    algorithm: str
    settings: Mapping[str, int | float]

    def arguments(self, directory: Path) -> dict[str, str]:
        """Write the file (there is no flag for its settings) and name it: keyword arguments of `sglang.Engine`."""
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / CONFIG_FILE
        path.write_text(yaml.safe_dump(dict(self.settings)), encoding="utf-8")
        return {"dllm_algorithm": self.algorithm, "dllm_algorithm_config": str(path)}

    def command(self, checkpoint: Path, directory: Path, *flags: str) -> list[str]:
        """The command that starts the server; the file is written."""
        ours = [text for name, value in self.arguments(directory).items() for text in (_flag(name), value)]
        start = ["python", "-m", "sglang.launch_server", "--model-path", str(checkpoint), "--skip-tokenizer-init"]
        return [*start, *ours, *flags]


def plan(
    serving: Serving, config: SamplingConfig, record: frozenset[Records] = frozenset(), *, logprobs: bool = False
) -> SglangDecoder:
    """What to start SGLang with, or UnsupportedRequestError: to be asked before anything is loaded."""
    serving.check(config, record, logprobs=logprobs)
    if config.remasking != "low_confidence":
        raise serving.refusal(f"ranks positions by confidence only (here {config.remasking!r})")
    if config.steps_per_block != config.block_length:
        asked = f"{config.steps_per_block} steps for {config.block_length} tokens"
        raise serving.refusal(f"has no step schedule, it commits at least one token a step (here {asked})")
    if config.selector not in ("schedule", "dynamic"):
        raise serving.refusal(f"knows no selector {config.selector!r}", f"set 'dynamic', or {OUR_DECODER}")
    settings = {"block_size": config.block_length, "threshold": config.threshold or _NEVER}
    if config.edit_threshold is None:
        return SglangDecoder("LowConfidence", settings)
    if "step_map" in record:
        raise serving.refusal("reports no step map of a decode that edits")
    edits = {"edit_threshold": config.edit_threshold, "max_post_edit_steps": config.max_post_steps}
    return SglangDecoder("JointThreshold", {**settings, **edits, "penalty_lambda": 0})


class SglangEngine(EngineSampler):
    """SGLang in this process. When one of its subprocesses fails it ends this process too, with SIGQUIT."""

    def __init__(self, engine: Any, serving: Serving, config: SamplingConfig) -> None:
        super().__init__(serving, plan, config)
        self._engine = engine

    @classmethod
    def load(
        cls,
        checkpoint: Path,
        model: ServedModel,
        config: SamplingConfig,
        workdir: Path,
        record: frozenset[Records] = frozenset(),
        *,
        seeded: bool = True,
        capability: Capability = TABLE["sglang"],
        **server_args: Any,
    ) -> SglangEngine:
        """Check, then load. `server_args` are SGLang's own: `max_running_requests` (1 if not given), `tp_size`, ..."""
        module = import_engine("sglang")
        serving = Serving(capability, module.__version__, model, seeded)
        decoder = plan(serving, config, record)
        ours = {"model_path": str(checkpoint), "skip_tokenizer_init": True, **decoder.arguments(workdir)}
        check_arguments(serving, server_args, ours)
        try:
            engine = module.Engine(**server_args, **ours)
        except Exception as error:  # whatever it raises has one name here
            raise EngineDiedError(f"sglang did not start ({one_line(error)}): see its log") from error
        return cls(engine, serving, config)

    def complete(self, request: Request) -> list[Completion]:
        """One call for all rows."""
        wanted = {"return_step_maps": True} if "step_map" in request.record else {}
        params = sampling_params(request.config, self.serving.model)
        try:
            answer = self._engine.generate(input_ids=request.prompts, sampling_params=params, **wanted)
        except ValueError as error:  # what its HTTP server turns into status 400
            raise EngineReplyError(f"sglang refused the request: {error}") from error
        except Exception as error:  # whatever it raises has one name here
            raise EngineDiedError(f"sglang failed during the request ({error}): see its log") from error
        return _completions(answer, request)

    def update_weights(self, weights: dict[str, Tensor]) -> None:
        """New weights under their published names. Nothing checks that they arrived whole: run the probe afterwards."""
        succeeded, message = self._engine.update_weights_from_tensor(list(weights.items()), flush_cache=True)
        if not succeeded:
            raise EngineReplyError(f"sglang did not take the weights: {message}")

    def release_memory(self, *tags: str) -> None:
        """Give up `weights` and `kv_cache`, or the tags given; needs `enable_memory_saver=True` at load."""
        self._engine.release_memory_occupation(tags=list(tags) or None)

    def resume_memory(self, *tags: str) -> None:
        """Take the memory back. What the weights hold then is undefined: update them."""
        self._engine.resume_memory_occupation(tags=list(tags) or None)

    def close(self) -> None:
        """End the engine's subprocesses."""
        self._engine.shutdown()


class SglangServer(EngineSampler):
    """A running `sglang.launch_server`. What it was started with is read off it; its YAML file cannot be."""

    def __init__(
        self,
        url: str,
        model: ServedModel,
        config: SamplingConfig,
        *,
        timeout: float = 3600.0,
        api_key: str | None = None,
        capability: Capability = TABLE["sglang"],
        seeded: bool = True,
    ) -> None:
        self._server = EngineServer("sglang", url, timeout, api_key)
        try:
            version, algorithm, served = self._told()
            serving = Serving(capability, version, model, seeded)
            super().__init__(serving, plan, config)
            if model.architecture not in served[:1]:
                raise EngineReplyError(f"the server at {url} serves {served}, not {model.architecture}")
            decoder = plan(serving, config)
            if algorithm != decoder.algorithm:
                instead = f"start it with --dllm-algorithm {decoder.algorithm} and a file of {decoder.settings}"
                raise serving.refusal(f"at {url} runs --dllm-algorithm {algorithm}", instead)
        except EngineError:
            self.close()
            raise

    def _told(self) -> tuple[str, str | None, list[str]]:
        """Its version, its diffusion algorithm and its model's architectures."""
        started, serves = self._server.get("/server_info"), self._server.get("/model_info")
        try:
            return str(started["version"]), started["dllm_algorithm"], list(serves["architectures"] or [])
        except (KeyError, TypeError) as error:
            told = f"{str(started)[:100]} and {str(serves)[:100]}"
            raise EngineReplyError(f"{self._server.url} does not answer as an SGLang server: {told}") from error

    def complete(self, request: Request) -> list[Completion]:
        """One request for all rows."""
        params = sampling_params(request.config, self.serving.model)
        body = {"input_ids": request.prompts, "sampling_params": params, "stream": False}
        return _completions(self._server.post("/generate", body), request)

    def update_weights(self, checkpoint: Path) -> None:
        """New weights from a folder that the server can read."""
        self._server.post("/update_weights_from_disk", {"model_path": str(checkpoint)})

    def close(self) -> None:
        """Close the connections; the server goes on."""
        self._server.close()


def sampling_params(config: SamplingConfig, model: ServedModel) -> dict[str, Any]:
    """In full, so that no default of the server or the checkpoint matters."""
    return {
        "max_new_tokens": config.gen_length,
        "temperature": config.temperature,
        "top_p": 1.0,
        "top_k": -1,
        "min_p": 0.0,
        "stop_token_ids": list(model.eos_ids),
        "skip_special_tokens": False,
    }


def _completions(answer: Any, request: Request) -> list[Completion]:
    """A list of `output_ids` with `meta_info`; `text`, where there is one, is not read."""
    prompts, block = request.prompts, request.config.block_length
    if not isinstance(answer, list) or len(answer) != len(prompts):
        raise EngineReplyError(f"sglang returned no list of {len(prompts)} completions: {str(answer)[:200]}")
    return [_completion(row, block, len(prompt)) for row, prompt in zip(answer, prompts, strict=True)]


def _completion(row: Any, block_length: int, prompt_length: int) -> Completion:
    try:
        ids, meta = tuple(row["output_ids"]), row["meta_info"]
        reason, steps = meta["finish_reason"]["type"], meta.get("step_maps")
    except (KeyError, TypeError) as error:
        raise EngineReplyError(f"sglang returned no completion: {str(row)[:200]}") from error
    if reason not in ("stop", "length"):
        raise EngineReplyError(f"sglang ended a row with {meta['finish_reason']}")
    if steps is None:
        return Completion(ids)
    blocks: dict[int, list[int]] = {}
    for place, step in enumerate(steps):
        blocks.setdefault((prompt_length + place) // block_length, []).append(step)
    order = list(blocks.values())
    if any(min(later) <= max(earlier) for earlier, later in itertools.pairwise(order)):
        raise EngineReplyError(f"sglang's step map starts anew within the completion, and ours never does: {steps}")
    return Completion(ids, tuple(steps))


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")
