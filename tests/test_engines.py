"""Engines against doubles that decode by the rules of their sources: translation, refusals, failures, probe."""

from __future__ import annotations

import base64
import contextlib
import inspect
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from engine_doubles import (
    AUTOREGRESSIVE,
    BLOCK,
    EOS,
    MASK,
    MODEL,
    PAD,
    ToyBlocks,
    lmdeploy_server,
    sglang_module,
    sglang_server,
    toy,
    vllm_module,
)
from hypothesis import given
from hypothesis import strategies as st

from dare.family import Backbone
from dare.sampling.block import sample_block
from dare.sampling.engines import (
    EngineDiedError,
    EngineMissingError,
    EngineReplyError,
    EngineTimeoutError,
    ProbeError,
    UnsupportedRequestError,
    lmdeploy,
    sglang,
    vllm,
)
from dare.sampling.engines.capabilities import TABLE, ServedModel, Serving
from dare.sampling.engines.probe import Canary, probe
from dare.sampling.engines.sampler import Completion, EngineSampler, Request, to_samples
from dare.sampling_config import SamplingConfig
from dare.seeds import generator_for
from dare.types import UNRECORDED, Samples

SDAR = ServedModel("SDARForCausalLM", (151643, 151645), 151643, 151669, 4)
LLADA2 = ServedModel("LLaDA2MoeModelLM", (156892,), 156892, 156895, 32)
LLADA = ServedModel("LLaDAModelLM", (126081,), 126081, 126336, None)
PROMPTS = [[3, 4, 5, 6], [7, 8, 9, 10, 11, 12, 13, 14], [15, 16, 17, 18], [5, 5, 5, 5]]
UNEVEN = [[3, 4, 5, 6, 7, 8], [9, 10], [11, 12]]
"""With a window of 10 they end with a block; beyond its end an engine decodes on, and ours sees padding."""


def settings(**changes: object) -> SamplingConfig:
    """Greedy, a token a step, in the toy's blocks."""
    return SamplingConfig.model_validate({"gen_length": 16, "block_length": BLOCK, "steps_per_block": BLOCK} | changes)


def generators(rows: int) -> list[torch.Generator]:
    return [generator_for(0, "row", row) for row in range(rows)]


def ours(config: SamplingConfig, prompts: Sequence[Sequence[int]] = PROMPTS) -> Samples:
    """Our own decoder on the toy language."""
    return sample_block(
        ToyBlocks(), prompts, config, generators(len(prompts)), mask_id=MASK, pad_id=PAD, eos_ids=(EOS,)
    )


def completions(samples: Samples) -> list[list[int]]:
    return [ids[kept].tolist() for ids, kept in zip(samples.ids, samples.completion, strict=True)]


def ask(engine: Any, config: SamplingConfig, prompts: Sequence[Sequence[int]] = PROMPTS, **options: Any) -> Samples:
    samples: Samples = engine.sample(prompts, config, generators(len(prompts)), **options)
    return samples


def lmdeploy_at(url: str, config: SamplingConfig, seeded: bool = True, **options: Any) -> lmdeploy.LmdeployServer:
    serving = Serving(toy("lmdeploy"), "0.12.3", MODEL, seeded)
    return lmdeploy.LmdeployServer(url, serving, config, **options)


def sglang_engine(
    monkeypatch: pytest.MonkeyPatch, directory: Path, config: SamplingConfig, row: str = "sglang", **double: Any
) -> tuple[sglang.SglangEngine, Any]:
    """The offline engine on a double, and the double."""
    module = sglang_module(branch=row == "sglang#27943", **double)
    monkeypatch.setitem(sys.modules, "sglang", module)
    record = toy(row).records
    engine = sglang.SglangEngine.load(
        Path("/m"), MODEL, config, directory, record, capability=toy(row), seeded=False, max_running_requests=8
    )
    return engine, module.loaded[0]


# What is refused before anything loads

REFUSED = [
    ("sglang", "0.5.9", SDAR, {"temperature": 1.0}, {}, "takes the argmax whatever temperature"),
    ("sglang", "0.5.23", SDAR, {"temperature": 0.3}, {}, "takes the argmax whatever temperature"),
    ("sglang", "0.5.9", SDAR, {"steps_per_block": 2}, {}, "no step schedule"),
    ("sglang", "0.5.9", SDAR, {"remasking": "sequential"}, {}, "by confidence only"),
    ("sglang", "0.5.9", SDAR, {"selector": "threshold", "threshold": 0.9}, {}, "no selector 'threshold'"),
    ("sglang", "0.5.9", SDAR, {}, {"record": {"step_map"}}, "does not report step_map"),
    ("sglang", "0.5.9", SDAR, {}, {"logprobs": True}, "computes none"),
    ("sglang", "0.5.8", SDAR, {}, {}, "outside 0.5.9 to 0.5.23"),
    ("sglang", "0.6.0", SDAR, {}, {}, "outside 0.5.9 to 0.5.23"),
    ("sglang", "dev", SDAR, {}, {}, "outside 0.5.9 to 0.5.23"),
    ("sglang", "0.5.9", LLADA, {}, {}, "not LLaDAModelLM"),
    ("sglang", "0.5.9", LLADA2, {}, {}, "blocks of 4 tokens with a model of blocks of 32"),
    ("sglang", "0.5.9", SDAR, {"cfg_scale": 1.0}, {}, "nothing like cfg_scale (here 1.0)"),
    ("sglang", "0.5.9", SDAR, {"eos_policy": "eoser"}, {}, "nothing like eos_policy (here 'eoser')"),
    ("sglang", "0.5.9", SDAR, {"cache": "dual"}, {}, "nothing like cache (here 'dual')"),
    ("sglang#27943", "0.5.9", SDAR, {"temperature": 0.5}, {"seeded": False}, "not the model's own"),
    ("lmdeploy", "0.12.3", SDAR, {}, {"record": {"step_map"}}, "does not report step_map"),
    ("lmdeploy", "0.12.3", SDAR, {}, {"logprobs": True}, "lmdeploy#4206"),
    ("lmdeploy", "0.12.3", replace(SDAR, mask_id=7), {}, {}, "mask id 151669 compiled in, and this checkpoint's is 7"),
    ("lmdeploy", "0.12.3", SDAR, {"steps_per_block": 3}, {}, "3 steps do not divide 4 tokens"),
    ("lmdeploy", "0.12.3", SDAR, {"temperature": 0.5}, {"seeded": False}, "ranks positions by the distribution at"),
    ("lmdeploy", "0.12.3", SDAR, {"temperature": 1.0}, {}, "takes no seed per row"),
    ("lmdeploy", "0.12.3", SDAR, {"remasking": "random"}, {}, "here 'random'"),
    ("lmdeploy", "0.12.3", SDAR, {"selector": "dynamic", "threshold": 0.9}, {}, "no selector 'dynamic'"),
    ("lmdeploy", "0.11.0", SDAR, {}, {}, "outside 0.12.2 to 0.18.0"),
    ("lmdeploy", "0.12.3", LLADA2, {}, {}, "not LLaDA2MoeModelLM"),
    ("vllm", "0.20.2", SDAR, {}, {}, "decodes no diffusion model"),
    ("vllm", "0.20.2", AUTOREGRESSIVE, {}, {}, "left to right"),
    ("vllm", "0.20.2", AUTOREGRESSIVE, {"block_length": 1, "steps_per_block": 1, "top_p": 0.9, "temperature": 1.0},
     {}, "nothing like top_p"),
]  # fmt: skip
PLANS = {"sglang": sglang.plan, "sglang#27943": sglang.plan, "lmdeploy": lmdeploy.plan, "vllm": vllm.plan}


@pytest.mark.parametrize(("engine", "version", "model", "changes", "asked", "because"), REFUSED)
def test_what_an_engine_cannot_honour_is_refused_in_a_sentence_with_the_alternative(
    engine: str, version: str, model: ServedModel, changes: dict[str, Any], asked: dict[str, Any], because: str
) -> None:
    serving = Serving(TABLE[engine], version, model, asked.pop("seeded", True))
    request = {"record": frozenset(asked.pop("record", ())), **asked}
    with pytest.raises(UnsupportedRequestError) as refusal:
        PLANS[engine](serving, settings(**changes), **request)
    sentence = str(refusal.value)
    assert sentence.startswith(f"{engine} {version} ")
    assert because in sentence
    assert "Backbone." in sentence or "set block_length" in sentence  # what to do instead


@pytest.mark.parametrize("engine", TABLE)
def test_every_setting_that_the_table_does_not_name_must_keep_its_default(engine: str) -> None:
    capability = TABLE[engine]
    model = AUTOREGRESSIVE if engine == "vllm" else SDAR
    serving = Serving(capability, capability.since, model)
    others = SamplingConfig.model_fields.keys() - capability.settings
    assert others
    for name in others:
        changed = settings().model_copy(update={name: "something else"})
        with pytest.raises(UnsupportedRequestError, match=f"nothing like {name} .here 'something else'"):
            serving.check(changed)


@given(st.text(alphabet="0123456789.dev+post", max_size=12))
def test_no_version_string_breaks_the_check(version: str) -> None:
    with contextlib.suppress(UnsupportedRequestError):
        Serving(TABLE["sglang"], version, SDAR).check(settings())


@pytest.mark.parametrize("version", ["0.5.9", "0.5.10.post1", "0.5.23"])
def test_a_version_within_the_range_is_accepted(version: str) -> None:
    Serving(TABLE["sglang"], version, SDAR).check(settings())


# Translation


def test_sglang_is_started_with_an_algorithm_and_a_yaml_file(tmp_path: Path) -> None:
    serving = Serving(TABLE["sglang"], "0.5.23", LLADA2)
    config = settings(block_length=32, steps_per_block=32, selector="dynamic", threshold=0.7, edit_threshold=0.5)
    decoder = sglang.plan(serving, config)
    arguments = decoder.arguments(tmp_path)
    assert arguments["dllm_algorithm"] == "JointThreshold"
    assert yaml.safe_load(Path(arguments["dllm_algorithm_config"]).read_text()) == {
        "block_size": 32, "threshold": 0.7, "edit_threshold": 0.5, "max_post_edit_steps": 16, "penalty_lambda": 0,
    }  # fmt: skip
    command = decoder.command(Path("/m"), tmp_path, "--tp-size", "2")
    assert command[-6:] == [
        "--dllm-algorithm", "JointThreshold", "--dllm-algorithm-config", arguments["dllm_algorithm_config"],
        "--tp-size", "2",
    ]  # fmt: skip


def test_lmdeploy_is_started_with_its_own_names() -> None:
    serving = Serving(TABLE["lmdeploy"], "0.12.3", SDAR)
    assert lmdeploy.plan(serving, settings(selector="threshold", threshold=0.9)).arguments() == {
        "dllm_block_length": 4,
        "dllm_unmasking_strategy": "low_confidence_dynamic",
        "dllm_confidence_threshold": 0.9,
    }
    assert lmdeploy.plan(serving, settings(remasking="sequential")).command(Path("/m"), "--tp", "1") == [
        "lmdeploy", "serve", "api_server", "/m", "--backend", "pytorch", "--dllm-block-length", "4",
        "--dllm-unmasking-strategy", "sequential", "--dllm-denoising-steps", "4", "--tp", "1",
    ]  # fmt: skip


@pytest.mark.parametrize("changes", [{"confidence": "draw"}, {"remasking": "sequential"}])
def test_lmdeploy_honours_any_temperature_where_ours_ranks_as_it_does(changes: dict[str, Any]) -> None:
    serving = Serving(TABLE["lmdeploy"], "0.18.0", SDAR, seeded=False)
    lmdeploy.plan(serving, settings(temperature=0.5, **changes))
    assert lmdeploy.request_body([3], settings(temperature=0.5, **changes), SDAR)["temperature"] == 0.5


@given(st.integers(1, 64), st.integers(1, 64), st.sampled_from(["low_confidence", "sequential"]))
def test_lmdeploy_is_never_started_without_the_number_of_steps_it_divides_by(
    block: int, steps: int, remasking: str
) -> None:
    serving = Serving(TABLE["lmdeploy"], "0.12.3", replace(SDAR, block_size=block))
    if steps > block:
        return
    config = settings(block_length=block, steps_per_block=steps, remasking=remasking)
    try:
        decoder = lmdeploy.plan(serving, config)
    except UnsupportedRequestError:
        assert block % steps
    else:
        assert decoder.dllm_denoising_steps == steps
        assert block % steps == 0


# What comes back

DYNAMIC = {"selector": "dynamic", "threshold": 0.6}
EDITING = {**DYNAMIC, "edit_threshold": 0.5}


@pytest.mark.parametrize("changes", [{}, DYNAMIC, EDITING], ids=["a token a step", "dynamic", "editing"])
def test_sglang_started_as_planned_decodes_what_our_decoder_decodes(
    changes: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    config = settings(**changes)
    engine, double = sglang_engine(monkeypatch, tmp_path, config)
    assert completions(ask(engine, config)) == completions(ours(config))
    shorter = settings(**changes, gen_length=10)
    assert completions(ask(engine, shorter, UNEVEN)) == completions(ours(shorter, UNEVEN))
    assert double.server_args["skip_tokenizer_init"]
    assert double.server_args["max_running_requests"] == 8
    engine.close()
    assert not double.running


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"steps_per_block": 2},
        {"steps_per_block": 1},
        {"remasking": "sequential", "steps_per_block": 2},
        {"selector": "threshold", "threshold": 0.6},
    ],
    ids=["a token a step", "two a step", "all at once", "sequential", "threshold"],
)
def test_lmdeploy_started_as_planned_decodes_what_our_decoder_decodes(changes: dict[str, Any]) -> None:
    config = settings(**changes)
    decoder = lmdeploy.plan(Serving(toy("lmdeploy"), "0.12.3", MODEL), config)
    with lmdeploy_server(decoder.arguments()) as server:
        engine = lmdeploy_at(server.url, config)
        assert completions(ask(engine, config)) == completions(ours(config))
        shorter = settings(**changes, gen_length=10)
        assert completions(ask(engine, shorter, UNEVEN)) == completions(ours(shorter, UNEVEN))
        engine.close()


def test_a_row_comes_back_as_our_decoder_lays_it_out_and_says_what_is_not_known() -> None:
    config = settings()
    with lmdeploy_server(lmdeploy.plan(Serving(toy("lmdeploy"), "0.12.3", MODEL), config).arguments()) as server:
        engine = lmdeploy_at(server.url, config)
        found, expected = ask(engine, config), ours(config)
        engine.close()
    assert bool(expected.truncated.any())
    assert not bool(expected.truncated.all())  # the prompts show both ends
    for name in ("valid", "window", "completion", "truncated"):
        assert torch.equal(getattr(found, name), getattr(expected, name)), name
    assert torch.equal(found.ids[found.completion], expected.ids[expected.completion])
    returned = found.step_map != 0
    assert (found.step_map[returned] == UNRECORDED).all()
    assert (returned & ~found.window).sum() == 0
    assert (returned | ~found.completion).all()
    assert (found.ids[found.window & ~returned] == PAD).all()
    assert (found.nfe == UNRECORDED).all()
    assert expected.tokens_kept == found.tokens_kept <= found.tokens_decoded <= expected.tokens_decoded


def test_what_an_engine_returns_behind_the_end_of_sequence_is_decoded_and_not_kept() -> None:
    samples = to_samples([[3, 4]], [Completion((5, EOS, 6, EOS))], 4, MODEL)
    assert samples.ids.tolist() == [[3, 4, 5, EOS, 6, EOS]]
    assert samples.completion.tolist() == [[False, False, True, True, False, False]]
    assert samples.truncated.tolist() == [False]
    assert (samples.tokens_kept, samples.tokens_decoded) == (2, 4)


def test_an_engine_is_asked_as_a_backbone_is() -> None:
    backbone, engine = inspect.signature(Backbone.sample), inspect.signature(EngineSampler.sample)
    assert str(backbone) == str(engine)


def test_no_prompts_are_no_request() -> None:
    config = settings()
    with lmdeploy_server({}) as server:
        engine = lmdeploy_at(server.url, config)
        assert len(ask(engine, config, []).ids) == 0
        engine.close()
    assert [path for path, _ in server.asked] == ["/health"]


def test_the_step_maps_of_the_branch_are_those_of_our_decoder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = settings(**DYNAMIC)
    engine, _ = sglang_engine(monkeypatch, tmp_path, config, "sglang#27943")
    found, expected = ask(engine, config, record=frozenset({"step_map"})), ours(config)
    assert torch.equal(found.step_map[found.completion], expected.step_map[expected.completion])


def test_a_step_map_that_was_asked_for_and_does_not_come_is_an_error() -> None:
    with sglang_server({"block_size": BLOCK, "threshold": 1.0}) as server:  # the branch adds none over HTTP
        engine = sglang.SglangServer(server.url, MODEL, settings(), capability=toy("sglang#27943"))
        with pytest.raises(EngineReplyError, match="asked for step maps"):
            ask(engine, settings(), record=frozenset({"step_map"}))
        engine.close()


def test_a_step_map_that_starts_anew_in_every_block_is_refused() -> None:
    def steps(*step_map: int) -> tuple[int, ...] | None:
        meta = {"finish_reason": {"type": "length", "length": 8}, "step_maps": list(step_map)}
        return sglang._completion({"output_ids": [5] * 8, "meta_info": meta}, BLOCK, 6).steps  # blocks of 2, 4, 2

    assert steps(2, 1, 6, 5, 4, 3, 7, 8) == (2, 1, 6, 5, 4, 3, 7, 8)
    for wrong in ((1, 2, 1, 2, 3, 4, 1, 2), (1, 2, 3, 4, 5, 6, 6, 7)):
        with pytest.raises(EngineReplyError, match="starts anew"):
            steps(*wrong)


@pytest.mark.parametrize(
    ("ids", "because"),
    [
        ((), "0 tokens for a window of 4"),
        ((5, 5, 5, 5, 5), "5 tokens for a window of 4"),
        ((5, MASK, 5, 5), "mask token 1 at place 1"),
        ((5, 6), "stopped after 2 of 4 tokens at 6"),
    ],
)
def test_an_answer_that_is_no_completion_is_an_error_that_says_why(ids: tuple[int, ...], because: str) -> None:
    with pytest.raises(EngineReplyError, match=because):
        to_samples([[3]], [Completion(ids)], 4, MODEL)


def test_a_step_map_of_another_length_is_an_error() -> None:
    with pytest.raises(EngineReplyError, match="no list of 4 steps"):
        to_samples([[3]], [Completion((5, 5, 5, 5), (1, 2, 3))], 4, MODEL)


def test_requests_carry_ids_and_every_parameter_that_a_default_could_change() -> None:
    config = settings()
    with sglang_server({"block_size": BLOCK, "threshold": 1.0}) as server:
        engine = sglang.SglangServer(server.url, MODEL, config, capability=toy("sglang"))
        assert completions(ask(engine, config)) == completions(ours(config))
        engine.close()
    path, body = server.asked[-1]
    assert path == "/generate"
    assert body["input_ids"] == PROMPTS
    assert "text" not in body
    assert body["sampling_params"]["stop_token_ids"] == [EOS]
    assert body["sampling_params"]["max_new_tokens"] == 16


def test_a_sampled_lmdeploy_request_opens_the_whole_vocabulary() -> None:
    body = lmdeploy.request_body([3], settings(temperature=1.0), MODEL)
    assert (body["temperature"], body["top_k"], body["top_p"], body["min_p"]) == (1.0, 0, 1.0, 0.0)
    body = lmdeploy.request_body([3], settings(), MODEL)
    assert (body["temperature"], body["top_k"]) == (1.0, 1)


# How a server or an engine can fail


@pytest.mark.parametrize(
    ("behaviour", "error", "because"),
    [
        ("dies", EngineDiedError, "ended the connection during /generate"),
        ("slow", EngineTimeoutError, "did not answer /generate within 0.2 seconds"),
        ("refuses", EngineReplyError, "refused /generate with 500: Internal Server Error"),
        ("aborts", EngineReplyError, "ended a row with"),
    ],
)
def test_a_failing_server_is_a_named_error(behaviour: Any, error: type[Exception], because: str) -> None:
    config = settings()
    arguments = lmdeploy.plan(Serving(toy("lmdeploy"), "0.12.3", MODEL), config).arguments()
    with lmdeploy_server(arguments, behaviour) as server:
        engine = lmdeploy_at(server.url, config, timeout=0.2)
        with pytest.raises(error, match=because):
            ask(engine, config)
        engine.close()
    with sglang_server({"block_size": BLOCK, "threshold": 1.0}, behaviour) as server:
        other = sglang.SglangServer(server.url, MODEL, config, capability=toy("sglang"), timeout=0.2)
        with pytest.raises(error, match=because):
            ask(other, config)
        other.close()


def test_a_refused_request_says_what_the_server_said() -> None:
    config = settings()
    with sglang_server({"block_size": BLOCK, "threshold": 1.0}) as server:
        engine = sglang.SglangServer(server.url, MODEL, config, capability=toy("sglang"))
        with pytest.raises(EngineReplyError, match="400: The input_ids must not be empty"):
            ask(engine, config, [[]])
        engine.close()


def test_an_answer_of_another_shape_is_a_named_error() -> None:
    request = Request([[3], [4]], settings(), generators(2), frozenset())
    row = {"output_ids": [5] * 16, "meta_info": {"finish_reason": {"type": "length", "length": 16}}}
    for answer in ({}, [row], [row] * 3, [row, {"text": "5"}], [row, None], [row, {**row, "meta_info": {}}]):
        with pytest.raises(EngineReplyError, match="sglang returned no"):
            sglang._completions(answer, request)
    for answer in ({}, None, [], {"message": "no"}, {"output_ids": [5], "meta_info": {"finish_reason": None}}):
        with pytest.raises(EngineReplyError, match="lmdeploy returned no"):
            lmdeploy._completion(answer)


def test_no_server_is_a_named_error() -> None:
    with lmdeploy_server({}) as server:
        pass
    with pytest.raises(EngineDiedError, match="start the server first"):
        lmdeploy_at(server.url, settings())


def test_a_failed_row_does_not_wait_for_those_not_yet_sent() -> None:
    config = settings()
    with lmdeploy_server({}, "slow") as server:
        engine = lmdeploy_at(server.url, config, timeout=0.1, concurrency=1)
        begin = time.monotonic()
        with pytest.raises(EngineTimeoutError):
            ask(engine, config, PROMPTS * 10)
        assert time.monotonic() - begin < 2
        engine.close()


@pytest.mark.parametrize(("behaviour", "because"), [("dies", "EOF|gone"), ("aborts", "Abort in waiting queue")])
def test_a_failing_offline_sglang_is_a_named_error(
    behaviour: Any, because: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, _ = sglang_engine(monkeypatch, tmp_path, settings(), behaviour=behaviour)
    with pytest.raises((EngineDiedError, EngineReplyError), match=because):
        ask(engine, settings())


@pytest.mark.parametrize("name", ["sglang", "vllm"])
def test_a_missing_engine_is_one_sentence_that_names_the_extra(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    load = {
        "sglang": lambda: sglang.SglangEngine.load(Path("/m"), SDAR, settings(), tmp_path),
        "vllm": lambda: vllm.VllmEngine.load(Path("/m"), AUTOREGRESSIVE, settings()),
    }[name]
    with pytest.raises(EngineMissingError, match=rf"dare\[{name}\]"):
        load()


def test_nothing_is_loaded_when_the_request_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    module = sglang_module()
    monkeypatch.setitem(sys.modules, "sglang", module)
    with pytest.raises(UnsupportedRequestError, match="argmax"):
        sglang.SglangEngine.load(Path("/m"), SDAR, settings(temperature=1.0), tmp_path)
    assert not module.loaded
    assert not list(tmp_path.iterdir())


def test_another_decoder_than_the_one_it_was_started_with_is_refused(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, _ = sglang_engine(monkeypatch, tmp_path, settings())
    ask(engine, settings(gen_length=8))  # lengths are the request's
    with pytest.raises(UnsupportedRequestError, match=r"was started with .*1.0.* not .*0.6.*: start it anew"):
        ask(engine, settings(**DYNAMIC))
    with pytest.raises(UnsupportedRequestError, match="shows no canvas"):
        ask(engine, settings(), watch=lambda frame: None)
    with pytest.raises(UnsupportedRequestError, match="lets no row go on"):
        ask(engine, settings(), forks=object())
    with pytest.raises(UnsupportedRequestError, match="mask token that a prompt contains"):
        ask(engine, settings(), [[3, MASK]])


@pytest.mark.parametrize(
    ("double", "error", "because"),
    [
        ({"algorithm": None}, UnsupportedRequestError, "--dllm-algorithm None: start it with --dllm-algorithm LowConf"),
        ({"version": "0.4.1"}, UnsupportedRequestError, "sglang 0.4.1 is outside"),
    ],
)
def test_a_server_started_otherwise_is_refused(double: dict[str, Any], error: type[Exception], because: str) -> None:
    with sglang_server({"block_size": BLOCK}, **double) as server, pytest.raises(error, match=because):
        sglang.SglangServer(server.url, MODEL, settings(), capability=toy("sglang"))


def test_a_server_with_another_model_is_refused() -> None:
    served = replace(MODEL, architecture="SDARMoeForCausalLM")
    both = replace(toy("sglang"), mask_ids={served.architecture: MASK})
    with (
        sglang_server({"block_size": BLOCK}) as server,
        pytest.raises(EngineReplyError, match="not SDARMoeForCausalLM"),
    ):
        sglang.SglangServer(server.url, served, settings(), capability=both)


# Weights


def test_new_weights_reach_sglang_under_their_names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    engine, double = sglang_engine(monkeypatch, tmp_path, settings())
    engine.release_memory("kv_cache")
    engine.resume_memory("kv_cache")
    weight = torch.arange(3.0)
    engine.update_weights({"lm_head.weight": weight})
    assert double.weights["lm_head.weight"] is weight
    engine, _ = sglang_engine(monkeypatch, tmp_path, settings(), behaviour="refuses")
    with pytest.raises(EngineReplyError, match="did not take the weights: Error: Model has no parameter"):
        engine.update_weights({"lm_head.weight": weight})


def test_an_sglang_server_reads_new_weights_from_a_folder_or_says_that_it_cannot(tmp_path: Path) -> None:
    with sglang_server({"block_size": BLOCK, "threshold": 1.0}) as server:
        engine = sglang.SglangServer(server.url, MODEL, settings(), capability=toy("sglang"))
        engine.update_weights(tmp_path)
        with pytest.raises(EngineReplyError, match="400: Failed to get weights from"):
            engine.update_weights(tmp_path / "nothing")
        engine.close()


def test_lmdeploy_sleeps_and_wakes_in_the_order_that_an_update_needs() -> None:
    with lmdeploy_server({}) as server:
        engine = lmdeploy_at(server.url, settings())
        engine.sleep(2)
        with pytest.raises(EngineReplyError, match="still sleeps"):
            engine.wakeup("kv_cache")
        assert server.engine.asleep == {"weights"}
        engine.wakeup("weights")
        assert not server.engine.asleep
        engine.sleep(1)
        engine.wakeup()
        assert not server.engine.asleep
        engine.close()
    assert "/sleep?level=2" in [path for path, _ in server.asked]
    assert "/wakeup?tags=kv_cache" in [path for path, _ in server.asked]


def test_lmdeploy_takes_no_weights_from_the_host() -> None:
    with lmdeploy_server({}) as server:
        engine = lmdeploy_at(server.url, settings())
        with pytest.raises(UnsupportedRequestError, match=r"lm_head.weight is on cpu: move it"):
            engine.update_weights({"lm_head.weight": torch.zeros(2)})
        engine.close()
    assert not server.engine.updates


def test_handles_are_what_lmdeploy_unpickles() -> None:
    handles = [("lm_head.weight", (torch.zeros, (2, 3)))]  # a function and its arguments, as reduce_tensor gives
    [(name, (function, arguments))] = ForkingPickler.loads(base64.b64decode(lmdeploy.serialized(handles)))
    assert name == "lm_head.weight"
    assert function(*arguments).shape == (2, 3)


# vLLM

LEFT_TO_RIGHT: dict[str, Any] = {"block_length": 1, "steps_per_block": 1}


def test_vllm_decodes_an_autoregressive_model_left_to_right_with_a_seed_per_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", vllm_module())
    config = settings(**LEFT_TO_RIGHT, temperature=1.0)
    engine = vllm.VllmEngine.load(Path("/m"), AUTOREGRESSIVE, config, tensor_parallel_size=1)
    found = ask(engine, config, record=frozenset({"step_map"}))
    again = ask(engine, config, PROMPTS[:2])
    assert completions(again) == completions(found)[:2]  # a row depends on its generator only
    for row, length in enumerate(found.completion.sum(1).tolist()):
        assert found.step_map[row][found.completion[row]].tolist() == list(range(1, length + 1))
    assert found.nfe.tolist() == found.completion.sum(1).tolist()
    engine.close()


@pytest.mark.parametrize(("behaviour", "error"), [("dies", EngineDiedError), ("aborts", EngineReplyError)])
def test_a_failing_vllm_is_a_named_error(
    behaviour: Any, error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "vllm", vllm_module(behaviour))
    engine = vllm.VllmEngine.load(Path("/m"), AUTOREGRESSIVE, settings(**LEFT_TO_RIGHT))
    with pytest.raises(error, match="vllm"):
        ask(engine, settings(**LEFT_TO_RIGHT))


# The probe


class OurDecoder:
    """The toy language through our own decoder, as a sampler."""

    def sample(
        self, prompts: Sequence[Sequence[int]], config: SamplingConfig, generators: Sequence[torch.Generator]
    ) -> Samples:
        return sample_block(ToyBlocks(), prompts, config, generators, mask_id=MASK, pad_id=PAD, eos_ids=(EOS,))


def canaries() -> list[Canary]:
    """Three tokens from the middle of what the model says."""
    answers = completions(ours(settings()))
    return [Canary(f"prompt {n}", tuple(PROMPTS[n]), tuple(answers[n][1:4])) for n in range(2)]


def test_our_own_decoder_passes_the_probe() -> None:
    probe(OurDecoder(), settings(temperature=1.0), PROMPTS[0], canaries())


@pytest.mark.parametrize(
    ("behaviour", "because"),
    [
        ("honest", None),
        ("deaf", "temperature 1 are all the same: the temperature is ignored"),
        ("garbage", "all the same"),
    ],
)
def test_the_probe_tells_an_engine_that_samples_from_one_that_does_not(behaviour: Any, because: str | None) -> None:
    config = settings(temperature=1.0)
    decoder = lmdeploy.plan(Serving(toy("lmdeploy"), "0.12.3", MODEL, seeded=False), config)
    with lmdeploy_server(decoder.arguments(), behaviour) as server:
        engine = lmdeploy_at(server.url, config, seeded=False)
        if because is None:
            probe(engine, config, PROMPTS[0], canaries())
        else:
            with pytest.raises(ProbeError, match=because):
                probe(engine, config, PROMPTS[0], canaries())
        engine.close()


def test_an_engine_that_cannot_sample_passes_for_a_greedy_run_unless_it_talks_nonsense(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    engine, _ = sglang_engine(monkeypatch, tmp_path, settings())
    probe(engine, settings(), PROMPTS[0], canaries())
    engine, _ = sglang_engine(monkeypatch, tmp_path, settings(), behaviour="garbage")
    with pytest.raises(ProbeError, match=r"2 of 2 canaries found no right answer \(prompt 0, prompt 1\)"):
        probe(engine, settings(), PROMPTS[0], canaries())


def test_rows_that_disagree_at_temperature_0_fail_the_probe() -> None:
    class Noisy(OurDecoder):
        def sample(self, prompts: Any, config: SamplingConfig, generators: Any) -> Samples:
            return super().sample(prompts, config.model_copy(update={"temperature": 1.0}), generators)

    with pytest.raises(ProbeError, match="temperature 0 disagree"):
        probe(Noisy(), settings(), PROMPTS[0], [])


def test_importing_the_engines_imports_no_engine() -> None:
    assert not {"sglang", "lmdeploy", "vllm"} & {name for name, module in sys.modules.items() if module is not None}
