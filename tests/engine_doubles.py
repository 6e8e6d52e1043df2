"""Engines that decode a toy language by the rules in the source of SGLang and LMDeploy, behind their real interfaces.

Field names, endpoints, defaults and error shapes are those of sglang 0.5.9, lmdeploy 0.12.3 and vllm 0.20.2; a field
that these do not know is an error here, as are a missing content type and a wrong call.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from types import SimpleNamespace
from typing import Any, Literal
from urllib.parse import parse_qs, urlsplit

import torch
import yaml
from torch import Tensor

from dare.sampling.engines.capabilities import TABLE, Capability, ServedModel

EOS, MASK, PAD, VOCABULARY, BLOCK = 0, 1, 2, 24, 4
MODEL = ServedModel("SDARForCausalLM", (EOS,), PAD, MASK, BLOCK)
AUTOREGRESSIVE = ServedModel("Qwen3ForCausalLM", (EOS,), PAD, None, None)
Behaviour = Literal["honest", "deaf", "garbage", "dies", "slow", "refuses", "aborts"]
Draw = Callable[[Tensor], Tensor]
"""Tokens for a block from its logits."""


def toy(engine: str) -> Capability:
    """The engine's row with the toy's mask id compiled in."""
    return replace(TABLE[engine], mask_ids={MODEL.architecture: MASK})


def block_logits(ids: Sequence[int]) -> Tensor:
    """Logits of the last block, which sees everything up to its own end; any change of that shows."""
    seen = torch.tensor(ids)
    place = torch.arange(len(ids))
    context = (((seen + 1) * (place * 7 + 3)) % 101).sum()
    phase = context * 0.37 + place[-BLOCK:, None] * 1.7 + torch.arange(VOCABULARY) * 2.9
    logits = 5 * torch.sin(phase) + 2 * torch.cos(phase * 1.3)
    logits[:, EOS] += 1.0  # so that some rows end
    return logits.index_fill(-1, torch.tensor([MASK]), -50.0)


class ToyBlocks:
    """The same language for our own decoder, as its `BlockModel`."""

    block_size = BLOCK

    def prefill(self, ids: Tensor, length: Tensor, width: int) -> None:
        self._context = [row[:end].tolist() for row, end in zip(ids, length.tolist(), strict=True)]

    def logits(self, ids: Tensor, columns: Tensor, real: Tensor) -> Tensor:
        self._blocks = ids.tolist()
        rows = zip(self._context, self._blocks, strict=True)
        return torch.stack([block_logits([*context, *block]) for context, block in rows])

    def extend(self, rows: Tensor) -> None:
        for row in rows.nonzero().flatten().tolist():
            self._context[row] += self._blocks[row]

    def keep(self, rows: Tensor) -> None:
        self._context = [self._context[row] for row in rows.tolist()]


# The rules, as the engines' sources state them. A rule opens a block: ids and the step that committed each.

Look = Callable[[Tensor], Tensor]
"""Logits of the block, tempered, given its ids."""
Rule = Callable[[Tensor, Look, Draw, dict[str, Any]], Iterator[Tensor]]
"""Yields the block after every step."""


def low_confidence(block: Tensor, look: Look, draw: Draw, settings: dict[str, Any]) -> Iterator[Tensor]:
    """sglang/srt/dllm/algorithm/low_confidence.py: all masked above the threshold, else the best."""
    while (block == MASK).any():
        token, score = _drawn(look(block), draw)
        score = torch.where(block == MASK, score, -torch.inf)
        above = score > settings["threshold"]
        block = torch.where(above if above.any() else torch.arange(BLOCK) == score.argmax(), token, block)
        yield block


def joint_threshold(block: Tensor, look: Look, draw: Draw, settings: dict[str, Any]) -> Iterator[Tensor]:
    """sglang/srt/dllm/algorithm/joint_threshold.py: as above, and tokens that are not the prompt's may change."""
    prompt, edits_only = block != MASK, 0
    for _ in range(BLOCK + settings["max_post_edit_steps"]):
        masked = block == MASK
        token, score = _drawn(look(block), draw)
        if masked.any():
            confidence = torch.where(masked, score, -torch.inf)
            opened = confidence > settings["threshold"]
            opened = opened if opened.any() else torch.arange(BLOCK) == confidence.argmax()
        else:
            opened, edits_only = torch.zeros(BLOCK, dtype=torch.bool), edits_only + 1
            if edits_only > settings["max_post_edit_steps"]:
                return
        edited = (score > settings["edit_threshold"]) & (token != block) & ~masked & ~prompt
        if not (opened | edited).any():
            return
        block = torch.where(opened | edited, token, block)
        yield block


def unmasking(block: Tensor, look: Look, draw: Draw, settings: dict[str, Any]) -> Iterator[Tensor]:
    """lmdeploy/pytorch/strategies/dllm/unmasking.py."""
    place = torch.arange(BLOCK)
    while (block == MASK).any():
        masked = block == MASK
        token, score = _drawn(look(block), draw)
        score = torch.where(masked, score, 0.0)
        if settings["dllm_unmasking_strategy"] == "low_confidence_dynamic":
            chosen = (place == score.argmax()) | (score >= settings["dllm_confidence_threshold"])
        else:
            count = max(1, BLOCK // settings["dllm_denoising_steps"])  # without a number the engine fails here too
            first = int(masked.int().argmax())
            sequential = settings["dllm_unmasking_strategy"] == "sequential"
            chosen = torch.isin(place, (first + place[:count]) % BLOCK if sequential else score.topk(count).indices)
        block = torch.where(masked & chosen, token, block)
        yield block


def _drawn(logits: Tensor, draw: Draw) -> tuple[Tensor, Tensor]:
    token = draw(logits)
    return token, logits.softmax(-1).gather(-1, token[:, None]).squeeze(-1)


def completion(
    prompt: list[int],
    gen_length: int,
    rule: Rule,
    settings: dict[str, Any],
    draw: Draw,
    heat: float,
    stops: Sequence[int],
    length_first: bool = False,
) -> tuple[list[int], list[int]]:
    """Ids through the first of `stops`, and the step that committed each first. The last block is whole, then cut.

    `length_first`: a block that completes the window is not searched for an end of sequence (LMDeploy's
    `_check_stopwords_dllm`).
    """
    start = len(prompt) // BLOCK * BLOCK
    context, block = list(prompt[:start]), [*prompt[start:], *[MASK] * (start + BLOCK - len(prompt))]
    ids, steps, step = list[int](), list[int](), 0
    while True:
        before = context  # of this block, for the closure
        fresh = [place for place, token in enumerate(block) if token == MASK]
        first = dict.fromkeys(fresh, 0)

        def look(now: Tensor, before: list[int] = before) -> Tensor:
            return block_logits([*before, *now.tolist()]) / (heat or 1.0)

        for now in rule(torch.tensor(block), look, draw, settings):
            step, block = step + 1, now.tolist()
            first |= {place: step for place in fresh if not first[place] and block[place] != MASK}
        overruns = length_first and len(ids) + len(fresh) >= gen_length
        for place in fresh:
            ids.append(block[place])
            steps.append(first[place])
            if (ids[-1] in stops and not overruns) or len(ids) == gen_length:
                return ids, steps
        context, block = [*context, *block], [MASK] * BLOCK


def greedy(logits: Tensor) -> Tensor:
    return logits.argmax(-1)


def sampled(logits: Tensor) -> Tensor:
    """From a source of its own: the request carries no seed."""
    seed = torch.Generator().manual_seed(random.getrandbits(31))
    return torch.multinomial(logits.softmax(-1), 1, generator=seed).squeeze(-1)


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# SGLang

_SAMPLING_PARAMS = words(
    "max_new_tokens stop stop_token_ids stop_regex temperature top_p top_k min_p frequency_penalty presence_penalty "
    "repetition_penalty min_new_tokens n json_schema regex ebnf structural_tag ignore_eos skip_special_tokens "
    "spaces_between_special_tokens no_stop_trim custom_params stream_interval logit_bias sampling_seed"
)
_GENERATE = words(
    "rid text input_ids input_embeds sampling_params return_logprob logprob_start_len top_logprobs_num "
    "token_ids_logprob return_text_in_logprobs stream log_metrics return_hidden_states session_params lora_path "
    "custom_logit_processor priority"
)
_SERVER_ARGS = words(
    "model_path tokenizer_path skip_tokenizer_init trust_remote_code dtype tp_size mem_fraction_static "
    "max_running_requests enable_memory_saver attention_backend dllm_algorithm dllm_algorithm_config"
)
_YAML = words("block_size threshold edit_threshold max_post_edit_steps penalty_lambda")


def _known(given: dict[str, Any], fields: frozenset[str]) -> None:
    if unknown := given.keys() - fields:
        raise ValueError(f"unknown fields {sorted(unknown)}")


@dataclass
class Sglang:
    """What is behind both of SGLang's interfaces: rows in, rows with `output_ids` and `meta_info` out."""

    algorithm: str | None
    settings: dict[str, Any]
    behaviour: Behaviour = "honest"
    honours_temperature: bool = False
    """The released versions do not."""

    @property
    def rule(self) -> Rule:
        return {"LowConfidence": low_confidence, "JointThreshold": joint_threshold}[self.algorithm or ""]

    def rows(self, prompts: list[list[int]], params: dict[str, Any], step_maps: bool) -> list[dict[str, Any]]:
        _known(params, _SAMPLING_PARAMS)
        return [self._row(prompt, params, step_maps) for prompt in prompts]

    def _row(self, prompt: list[int], params: dict[str, Any], step_maps: bool) -> dict[str, Any]:
        if not prompt:
            raise ValueError("The input_ids must not be empty")
        heat = params["temperature"] if self.honours_temperature and self.behaviour != "deaf" else 0.0
        draw = sampled if heat else greedy
        ids, steps = completion(
            prompt, params["max_new_tokens"], self.rule, self.settings, draw, heat, params.get("stop_token_ids") or []
        )
        if self.behaviour == "garbage":
            ids, steps = [5] * params["max_new_tokens"], list(range(1, params["max_new_tokens"] + 1))
        stop = {"type": "stop", "matched": EOS} if ids[-1] == EOS else {"type": "length", "length": len(ids)}
        if self.behaviour == "aborts":
            stop = {"type": "abort", "message": "Abort in waiting queue", "status_code": None, "err_type": None}
        meta: dict[str, Any] = {
            "id": "0", "finish_reason": stop, "prompt_tokens": len(prompt), "weight_version": "default",
            "total_retractions": 0, "completion_tokens": len(ids), "cached_tokens": 0, "e2e_latency": 0.1,
        }  # fmt: skip
        if step_maps:
            meta["step_maps"] = steps
        return {"output_ids": ids, "meta_info": meta}


def sglang_module(behaviour: Behaviour = "honest", branch: bool = False, version: str = "0.5.9") -> SimpleNamespace:
    """A module with `Engine` and `__version__`. `branch` is pull request 27943."""
    loaded: list[Any] = []

    class Engine:
        def __init__(self, **server_args: Any) -> None:
            _known(server_args, _SERVER_ARGS)
            settings = yaml.safe_load(Path(server_args["dllm_algorithm_config"]).read_text())
            _known(settings, _YAML)
            self.server_args, self.weights, self.running = server_args, dict[str, Tensor](), True
            self._engine = Sglang(server_args["dllm_algorithm"], settings, behaviour, honours_temperature=branch)
            loaded.append(self)

        def generate(
            self,
            prompt: str | None = None,
            sampling_params: dict[str, Any] | None = None,
            input_ids: list[list[int]] | None = None,
            return_step_maps: bool = False,
        ) -> list[dict[str, Any]]:
            if return_step_maps and not branch:
                raise TypeError("Engine.generate() got an unexpected keyword argument 'return_step_maps'")
            if behaviour == "dies":
                raise EOFError("the scheduler is gone")
            assert prompt is None
            assert input_ids is not None
            return self._engine.rows(input_ids, sampling_params or {}, return_step_maps)

        def update_weights_from_tensor(
            self, named_tensors: list[tuple[str, Tensor]], load_format: str | None = None, flush_cache: bool = True
        ) -> tuple[bool, str]:
            if behaviour == "refuses":
                return False, "Error: Model has no parameter"
            self.weights.update(named_tensors)
            return True, "Success"

        def release_memory_occupation(self, tags: list[str] | None = None) -> None:
            self.running = False

        def resume_memory_occupation(self, tags: list[str] | None = None) -> None:
            self.running = True

        def shutdown(self) -> None:
            self.running = False

    return SimpleNamespace(Engine=Engine, __version__=version, loaded=loaded)


# LMDeploy

_LMDEPLOY_GENERATE: dict[str, Any] = {
    "session_id": -1, "prompt": None, "input_ids": None, "image_data": None, "return_logprob": None, "max_tokens": 128,
    "stop": None, "stop_token_ids": None, "stream": False, "temperature": 1.0, "repetition_penalty": 1.0,
    "ignore_eos": False, "top_p": 1.0, "top_k": 0, "min_p": 0.0, "skip_special_tokens": True,
    "spaces_between_special_tokens": True, "include_stop_str_in_output": False, "return_routed_experts": False,
}  # fmt: skip


@dataclass
class Lmdeploy:
    """The PyTorch engine behind `lmdeploy serve api_server`."""

    settings: dict[str, Any]
    behaviour: Behaviour = "honest"
    asleep: set[str] = field(default_factory=set)
    updates: list[dict[str, Any]] = field(default_factory=list)

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        _known(body, frozenset(_LMDEPLOY_GENERATE))
        request = {**_LMDEPLOY_GENERATE, **body}
        if (request["prompt"] is not None) ^ (request["input_ids"] is None):
            raise ValueError("You must specify exactly one of prompt or input_ids")
        if request["return_logprob"]:
            raise ValueError("return_logprob(True) requested but not enabled logprobs_mode in engine configuration.")
        deterministic = request["top_k"] == 1 or request["temperature"] == 0 or self.behaviour == "deaf"
        heat = 0.0 if deterministic else request["temperature"]
        draw = greedy if deterministic else sampled
        prompt, length, stops = request["input_ids"], request["max_tokens"], request["stop_token_ids"] or []
        ids, _ = completion(prompt, length, unmasking, self.settings, draw, heat, stops, length_first=True)
        if self.behaviour == "garbage":
            ids = [5] * request["max_tokens"]
        reason = "stop" if ids[-1] == EOS else "length"
        if reason == "stop" and not request["include_stop_str_in_output"]:
            ids = ids[:-1]
        if self.behaviour == "aborts":
            ids, reason = [], "error"
        meta = {"prompt_tokens": len(request["input_ids"]), "completion_tokens": len(ids)}
        meta |= {"finish_reason": {"type": reason}, "output_token_logprobs": None, "routed_experts": None}
        return {"text": "internal error happened" if reason == "error" else "", "output_ids": ids, "meta_info": meta}

    def wakeup(self, tags: list[str]) -> None:
        """A tag that is not asleep makes it do nothing, with status 200."""
        if all(tag in self.asleep for tag in tags):
            self.asleep -= set(tags or self.asleep)


# Both over HTTP


@dataclass
class Running:
    """A server in a thread, and everything it was asked."""

    url: str
    engine: Any
    asked: list[tuple[str, Any]]


@contextmanager
def sglang_server(
    settings: dict[str, Any],
    behaviour: Behaviour = "honest",
    algorithm: str | None = "LowConfidence",
    version: str = "0.5.9",
) -> Iterator[Running]:
    """`sglang.launch_server`."""
    engine = Sglang(algorithm, settings, behaviour)

    def answer(method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if (method, path) == ("GET", "/server_info"):
            return 200, {"dllm_algorithm": algorithm, "dllm_algorithm_config": "/dllm.yaml", "version": version}
        if (method, path) == ("GET", "/model_info"):
            return 200, {"model_path": "/m", "is_generation": True, "architectures": [MODEL.architecture]}
        if (method, path) == ("POST", "/update_weights_from_disk"):
            _known(body, frozenset({"model_path", "load_format", "abort_all_requests", "flush_cache"}))
            found = Path(body["model_path"]).is_dir()
            message = (
                "Succeeded to update model weights." if found else f"Failed to get weights from {body['model_path']}"
            )
            return 200 if found else 400, {"success": found, "message": message, "num_paused_requests": 0}
        if (method, path) != ("POST", "/generate"):
            return 404, {"detail": "Not Found"}
        try:
            _known(body, _GENERATE)
            rows = engine.rows(body["input_ids"], body["sampling_params"], step_maps=False)
        except ValueError as error:
            return 400, {"error": {"message": str(error)}}
        return 200, [{"text": "", **row} for row in rows]

    with _serve(answer, engine, behaviour) as running:
        yield running


@contextmanager
def lmdeploy_server(settings: dict[str, Any], behaviour: Behaviour = "honest") -> Iterator[Running]:
    """`lmdeploy serve api_server --backend pytorch`."""
    engine = Lmdeploy(settings, behaviour)

    def answer(method: str, path: str, query: dict[str, list[str]], body: Any) -> tuple[int, Any]:
        if (method, path) == ("GET", "/health"):
            return 200, ""
        if (method, path) == ("GET", "/is_sleeping"):
            return 200, {"is_sleeping": bool(engine.asleep)}
        if (method, path) == ("POST", "/sleep"):
            assert query.get("level", ["1"])[0] in ("1", "2")
            engine.asleep = {"weights", "kv_cache"}
            return 200, ""
        if (method, path) == ("POST", "/wakeup"):
            engine.wakeup(query.get("tags", []))
            return 200, ""
        if (method, path) == ("POST", "/update_weights"):
            _known(body, frozenset({"serialized_named_tensors", "load_format", "finished"}))
            engine.updates.append(body)
            return 200, None
        if (method, path) != ("POST", "/generate"):
            return 404, {"detail": "Not Found"}
        try:
            return 200, engine.generate(body)
        except ValueError as error:
            fault = {"type": "invalid_request_error", "code": 400, "param": None, "object": "error"}
            return 400, {"message": str(error), **fault}

    with _serve(answer, engine, behaviour) as running:
        yield running


@contextmanager
def _serve(
    answer: Callable[[str, str, dict[str, list[str]], Any], tuple[int, Any]], engine: Any, behaviour: Behaviour
) -> Iterator[Running]:
    asked: list[tuple[str, Any]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self._answer("GET", None)

        def do_POST(self) -> None:
            raw = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers["Content-Type"] != "application/json":
                self._send(422, {"detail": "Unsupported Media Type: Only 'application/json' is allowed"})
            else:
                self._answer("POST", json.loads(raw))

        def _answer(self, method: str, body: Any) -> None:
            url = urlsplit(self.path)
            asked.append((self.path, body))
            generates = url.path == "/generate"
            if generates and behaviour == "slow":
                time.sleep(0.5)
            if generates and behaviour == "dies":
                self.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 999\r\n\r\n[{")
                self.close_connection = True
            elif generates and behaviour == "refuses":
                self._send(500, "Internal Server Error")
            else:
                self._send(*answer(method, url.path, parse_qs(url.query), body))

        def _send(self, status: int, content: Any) -> None:
            raw = content.encode() if isinstance(content, str) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)

        def log_message(self, format: str, *args: Any) -> None:
            """Not to the terminal."""

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: Any, client_address: Any) -> None:
            """A client that gave up waiting is no news."""

    server = Server(("127.0.0.1", 0), Handler)
    thread = Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield Running(f"http://127.0.0.1:{server.server_port}", engine, asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


# vLLM


def vllm_module(behaviour: Behaviour = "honest", version: str = "0.20.2") -> SimpleNamespace:
    """A module with `LLM`, `SamplingParams` and `__version__`; the toy language a token at a time."""

    @dataclass
    class SamplingParams:
        temperature: float = 1.0
        top_p: float = 1.0
        top_k: int = 0
        seed: int | None = None
        stop_token_ids: list[int] | None = None
        max_tokens: int | None = 16
        detokenize: bool = True

    class EngineDeadError(Exception):
        """Not a RuntimeError, as in vllm/v1/engine/exceptions.py."""

    class LLM:
        def __init__(self, model: str, *, skip_tokenizer_init: bool = False, tensor_parallel_size: int = 1) -> None:
            self.model = model

        def generate(
            self, prompts: list[dict[str, list[int]]], sampling_params: list[SamplingParams], *, use_tqdm: bool
        ) -> list[Any]:
            if behaviour == "dies":
                raise EngineDeadError("EngineCore encountered an issue. See stack trace (above) for the root cause.")
            return [self._row(row["prompt_token_ids"], p) for row, p in zip(prompts, sampling_params, strict=True)]

        def _row(self, prompt: list[int], params: SamplingParams) -> Any:
            draws, ids = random.Random(params.seed), list[int]()
            while len(ids) < (params.max_tokens or 16) and not set(ids) & set(params.stop_token_ids or []):
                law = block_logits([*prompt, *ids, *[MASK] * BLOCK])[0]
                drawn = draws.choices(range(VOCABULARY), law.softmax(-1).tolist())[0]
                ids.append(drawn if params.temperature and behaviour != "deaf" else int(law.argmax()))
            reason = "abort" if behaviour == "aborts" else "stop" if ids[-1] == EOS else "length"
            return SimpleNamespace(outputs=[SimpleNamespace(index=0, text="", token_ids=ids, finish_reason=reason)])

    return SimpleNamespace(LLM=LLM, SamplingParams=SamplingParams, __version__=version)
