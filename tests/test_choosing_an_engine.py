"""`--engine`, from what a person writes to the answers: refused before anything loads, no weights, nothing invented."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, cast

import httpx
import pytest
import torch
import uvicorn
from engine_doubles import BLOCK, Running, ToyBlocks, lmdeploy_server, sglang_module, sglang_server, toy
from engine_doubles import MASK as INSIDE
from typer.testing import CliRunner, Result

from dare.__main__ import app
from dare.catalog import backbone_directory
from dare.diary.events import EventLog
from dare.evaluation import evaluate
from dare.families.backbone import NoWeightsError
from dare.family import Backbone, load_family
from dare.generate import decoding_name
from dare.policy import Policy, decoded_by, open_policy, served_model
from dare.sampling.block import sample_block
from dare.sampling.engines import ChoiceError, lmdeploy, sglang
from dare.sampling.engines.capabilities import TABLE, ServedModel, Serving
from dare.sampling.engines.choice import EngineChoice, parse_choice
from dare.sampling_config import SamplingConfig
from dare.scoring import EvaluationError
from dare.seeds import generator_for
from dare.server.app import Limits, listen, make_app, url_of
from dare.spec import EvaluateSpec, TaskProtocol
from dare.tasks import load_task
from dare.types import UNRECORDED, Samples

COMPILED_IN = 151669
"""SDAR's mask id, in the engines and in the published checkpoints."""
QUESTIONS = ["S0321003004002100", "C1 2 3=6", "S1", "C5 5=25"]
SGLANG = {"block_size": BLOCK, "threshold": 1.0}
LMDEPLOY = {
    "dllm_block_length": BLOCK,
    "dllm_unmasking_strategy": "low_confidence_static",
    "dllm_denoising_steps": BLOCK,
}
WINDOW = ["--gen-length", "16"]


@pytest.fixture
def real_table() -> None:
    """The table of engines as it is."""


@pytest.fixture(autouse=True)
def rows_of_the_doubles(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doubles have the mask id of sdar-tiny compiled in, so that their rows of the table say so."""
    if "real_table" not in request.fixturenames:
        for engine in ("sglang", "lmdeploy"):
            monkeypatch.setitem(cast(dict[str, Any], TABLE), engine, toy(engine))


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """sdar-tiny without its weights."""
    made = tmp_path_factory.mktemp("bare") / "sdar-bare"
    made.mkdir()
    for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(backbone_directory("sdar-tiny") / name, made)
    return made


@pytest.fixture(scope="module")
def policy(bare: Path) -> Policy:
    return open_policy(str(bare), with_weights=False).with_settings({"gen_length": 16})


def publish(bare: Path, made: Path) -> None:
    """The same with the mask where the published checkpoints have it, and reserved tokens between.

    The doubles speak the first 24 tokens, and call their own mask by an id that is reserved here.
    """
    made.mkdir()
    shutil.copy(bare / "chat_template.jinja", made)
    config = json.loads((bare / "config.json").read_text())
    (made / "config.json").write_text(json.dumps({**config, "mask_token_id": COMPILED_IN, "vocab_size": 151936}))
    tokenizer = json.loads((bare / "tokenizer.json").read_text())
    [mask] = [entry for entry in tokenizer["added_tokens"] if entry["id"] == INSIDE]
    mask["id"] = COMPILED_IN
    tokenizer["added_tokens"].sort(key=lambda entry: entry["id"])
    words = {**tokenizer["model"]["vocab"], mask["content"]: COMPILED_IN}
    reserved = set(range(COMPILED_IN)) - set(words.values())
    tokenizer["model"]["vocab"] = {**words, **{f"<|reserved_{n}|>": n for n in reserved}}
    (made / "tokenizer.json").write_text(json.dumps(tokenizer))
    settings = json.loads((bare / "tokenizer_config.json").read_text())
    settings["added_tokens_decoder"][str(COMPILED_IN)] = settings["added_tokens_decoder"].pop(str(INSIDE))
    (made / "tokenizer_config.json").write_text(json.dumps(settings))


def expected(policy: Policy, asked: Sequence[str] = QUESTIONS, **changes: Any) -> Samples:
    """What our own decoder says in the toy language; an engine is told the ends of the checkpoint."""
    prompts = [policy.prompt(question) for question in asked]
    config = policy.configure(changes)
    generators = [generator_for(0, "any", row) for row in range(len(prompts))]
    eos = policy.backbone.eos_ids
    return sample_block(ToyBlocks(), prompts, config, generators, mask_id=INSIDE, pad_id=0, eos_ids=eos)


def texts(policy: Policy, samples: Samples) -> list[str]:
    rows = zip(samples.ids, samples.completion, strict=True)
    return [policy.tokenizer.decode(ids[kept].tolist()) for ids, kept in rows]


def run(*words: str) -> Result:
    return CliRunner().invoke(app, list(words))


def answered(*words: str) -> Result:
    done = run("generate", *words)
    assert done.exit_code == 0, done.output
    return done


def refusal(*words: str) -> str:
    done = run(*words)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    sentence = done.stderr.replace("\n", " ").strip()
    assert sentence.startswith("dare: ")
    return sentence


# What a person writes


def test_what_a_person_writes_names_an_engine() -> None:
    assert parse_choice("sglang") == EngineChoice(TABLE["sglang"], None, None)
    assert parse_choice("sglang@http://gpu:30000/") == EngineChoice(TABLE["sglang"], None, "http://gpu:30000")
    assert parse_choice("sglang#27943@https://gpu").capability.engine == "sglang#27943"
    assert parse_choice("lmdeploy:0.12.3@http://[::1]:2") == EngineChoice(TABLE["lmdeploy"], "0.12.3", "http://[::1]:2")
    assert parse_choice("vllm") == EngineChoice(TABLE["vllm"], None, None)


@pytest.mark.parametrize(
    ("written", "sentence"),
    [
        ("", "there is no engine ''. Known: `lmdeploy`, `sglang`, `sglang#27943`, `vllm`."),
        ("sgl", "there is no engine 'sgl'. Did you mean `sglang`?"),
        ("http://gpu:30000", "there is no engine 'http'"),
        ("sglang@", "'' is no address of a server"),
        ("sglang@gpu:30000", "'gpu:30000' is no address of a server: write it as http://"),
        ("sglang@http://gpu:port", "no address of a server"),
        ("sglang@http://gpu:70000", "no address of a server"),
        ("sglang@http://gpu 1", "no address of a server"),
        ("sglang@http://me:secret@gpu", "give a key by DARE_ENGINE_KEY"),
        ("sglang@http://gpu?x=1", "goes on behind the address"),
        ("sglang:0.5.9", "tells its version itself, and 'sglang:0.5.9' states one: write sglang"),
        ("lmdeploy", "used as a server only, and 'lmdeploy' names none: start it and write lmdeploy:0.12.2@http://"),
        ("lmdeploy:0.12.3", "write lmdeploy:0.12.3@http://"),
        ("lmdeploy@http://gpu:1", "states none: write lmdeploy:0.12.2@http://gpu:1"),
        ("lmdeploy:@http://gpu:1", "states none: write lmdeploy:0.12.2@http://gpu:1"),
        ("vllm@http://gpu:1", "in this process only, and 'vllm@http://gpu:1' names a server: write vllm"),
    ],
)
def test_what_names_no_engine_is_refused_in_a_sentence(written: str, sentence: str) -> None:
    with pytest.raises(ChoiceError) as refused:
        parse_choice(written)
    assert sentence in str(refused.value)
    assert "secret" not in str(refused.value)


# A checkpoint without its weights


def test_what_an_engine_must_agree_about_comes_from_the_files_alone(bare: Path, policy: Policy) -> None:
    assert not list(bare.glob("*.safetensors"))
    assert served_model(policy.backbone) == ServedModel("SDARForCausalLM", (0, 3), 0, INSIDE, 4)
    assert policy.context == 128
    loaded = open_policy("sdar-moe-tiny", device="cpu")
    outlined = open_policy("sdar-moe-tiny", with_weights=False)
    assert served_model(outlined.backbone) == served_model(loaded.backbone)
    assert outlined.prompt("S1") == loaded.prompt("S1")
    assert (outlined.sampling, outlined.context, outlined.weights) == (loaded.sampling, loaded.context, loaded.weights)


@pytest.mark.parametrize("name", ["llada-tiny", "dream-tiny", "sdar-tiny", "llada2-tiny"])
def test_a_backbone_without_weights_says_so_when_it_is_asked_to_compute(name: str) -> None:
    outline = open_policy(name, with_weights=False)
    assert all(parameter.is_meta for parameter in outline.backbone.model.parameters())
    with pytest.raises(NoWeightsError, match="was opened without its weights"):
        outline.sample([outline.prompt("S1")], outline.sampling, [generator_for(0, "any")])
    with pytest.raises(NoWeightsError, match="was opened without its weights"):
        outline.backbone.model(torch.tensor([[2, 3]]))


# dare generate


@contextmanager
def either(engine: str, behaviour: Any = "honest") -> Iterator[tuple[str, Running]]:
    """A server of either kind, started as planned, and what one writes for it."""
    if engine == "sglang":
        with sglang_server(SGLANG, behaviour) as running:
            yield f"sglang@{running.url}", running
    else:
        with lmdeploy_server(LMDEPLOY, behaviour) as running:
            yield f"lmdeploy:0.12.3@{running.url}", running


@pytest.mark.parametrize("engine", ["sglang", "lmdeploy"])
def test_answers_of_a_server_are_those_of_our_decoder(engine: str, bare: Path, policy: Policy) -> None:
    samples = expected(policy)
    with either(engine) as (written, _):
        common = ["--backbone", str(bare), *WINDOW, "--engine", written]
        done = answered(*QUESTIONS, *common, "--json")
        plain = answered(QUESTIONS[0], *common, "--batch", "1")
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["answer"] for row in rows] == texts(policy, samples)
    assert [row["truncated"] for row in rows] == samples.truncated.tolist()
    for row, ids, window, kept in zip(rows, samples.ids, samples.window, samples.completion, strict=True):
        assert row["ids"][: int(kept.sum())] == ids[kept].tolist()
        assert len(row["ids"]) == int(window.sum())
        assert not {"nfe", "step_map"} & row.keys()  # neither engine reports them
    assert plain.stdout.strip() == texts(policy, samples)[0].strip()


def test_the_offline_engine_is_started_as_planned_asked_in_batches_and_ended(
    bare: Path, policy: Policy, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = sglang_module()
    monkeypatch.setitem(sys.modules, "sglang", module)
    more = ["--engine", "sglang", "--engine-set", "max_running_requests=8"]
    done = answered(*QUESTIONS, "--backbone", str(bare), *WINDOW, *more, "--json")
    assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == texts(policy, expected(policy))
    [engine] = module.loaded
    assert engine.server_args["model_path"] == str(bare)
    assert engine.server_args["max_running_requests"] == 8
    assert not engine.running
    assert not Path(engine.server_args["dllm_algorithm_config"]).exists()  # its folder lived as long as the engine


def test_an_answers_file_names_the_engine_and_takes_no_other(bare: Path, tmp_path: Path) -> None:
    out = tmp_path / "answers.jsonl"
    source = tmp_path / "questions.txt"
    source.write_text("\n".join(QUESTIONS))
    common = ["--file", str(source), "--backbone", str(bare), *WINDOW, "--out", str(out)]
    with either("sglang") as (written, _):
        done = answered(*common, "--engine", written)
        assert "4 answers." in done.stderr
        assert "tokens/forward" not in done.output
        lines = out.read_text().splitlines()
        assert all(json.loads(line)["decoding"].startswith("sglang 0.5.9 ") for line in lines)
        assert not any("nfe" in json.loads(line) for line in lines)
        out.write_text("\n".join([*lines[:2], lines[2][:20]]))
        assert "2 of them from before" in answered(*common, "--engine", written).stderr
        assert out.read_text().splitlines() == lines
    with either("lmdeploy") as (written, _):
        assert "was decoded by another engine" in refusal("generate", *common, "--engine", written)
    with sglang_server(SGLANG, version="0.5.10") as other:
        assert "was decoded by another engine" in refusal("generate", *common, "--engine", f"sglang@{other.url}")
    assert out.read_text().splitlines() == lines


def test_our_decoder_and_an_engine_do_not_share_a_file(bare: Path, policy: Policy) -> None:
    with either("sglang") as (written, _), decoded_by(parse_choice(written), policy) as decoded:
        assert decoding_name(decoded, policy.sampling, 0).startswith("sglang 0.5.9 ")
        assert decoding_name(decoded, policy.sampling, 0) != decoding_name(policy, policy.sampling, 0)
        assert decoding_name(decoded, policy.sampling, 1) != decoding_name(decoded, policy.sampling, 0)


def test_sampled_answers_of_an_engine_without_seeds_need_consent(bare: Path) -> None:
    with either("lmdeploy") as (written, running):
        common = ["S1", "--backbone", str(bare), *WINDOW, "--temperature", "1", "--engine", written]
        sentence = refusal("generate", *common)
        assert "takes no seed per row" in sentence
        assert "--unseeded" in sentence
        assert running.asked == []  # it was not even connected to
        assert answered(*common, "--unseeded").stdout
        heats = [body["temperature"] for path, body in running.asked if path == "/generate"]
        assert heats[-1] == 1.0


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["1é", "--backbone", "{bare}"], "prompt 2: the tokenizer has no token for 'é'"),
        (["1" * 120, "--backbone", "{bare}"], "together more than the 128 positions of sdar-bare"),
        (["--backbone", "{bare}", "--steps", "2"], "no step schedule"),
        (["--backbone", "{bare}", "--temperature", "1"], "takes the argmax whatever temperature"),
        (["--backbone", "{bare}", "--set", "eos_policy=eoser"], "nothing like eos_policy"),
        (["--backbone", "{bare}", "--dtype", "bfloat16"], "--dtype and --device are our own decoder's"),
        (["--backbone", "{bare}", "--device", "cpu"], "--dtype and --device are our own decoder's"),
        (["--backbone", "{bare}", "--frames", "{tmp}/f.txt"], "--frames shows the canvas between its steps"),
        (["--backbone", "{bare}", "--animate"], "--animate shows the canvas between its steps"),
        (["--backbone", "{bare}", "--engine-set", "tp_size=2"], "runs already, and tp_size would come too late"),
        (["--backbone", "{bare}", "--engine-set", "tp_size"], "--engine-set 'tp_size' is not of the form"),
    ],
)
def test_what_a_server_cannot_do_is_said_before_it_is_asked(
    words: list[str], sentence: str, bare: Path, tmp_path: Path
) -> None:
    with either("sglang") as (written, running):
        filled = [word.format(bare=bare, tmp=tmp_path) for word in words]
        assert sentence in refusal("generate", "S1", *filled, "--engine", written)
        assert running.asked == []


@pytest.mark.usefixtures("real_table")
@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("sdar-tiny", "has the mask id 151669 compiled in, and this checkpoint's is 1: use our own decoder"),
        ("sdar-moe-tiny", "has the mask id 151669 compiled in, and this checkpoint's is 1: use our own decoder"),
        ("llada2-tiny", "has the mask id 156895 compiled in"),
        ("llada-tiny", "and not LLaDAModelLM"),
        ("dream-tiny", "and not DreamModel"),
    ],
)
def test_tiny_checkpoints_are_none_that_an_engine_was_compiled_for(name: str, sentence: str) -> None:
    with either("sglang") as (written, running):
        assert sentence in refusal("generate", "S1", "--backbone", name, "--engine", written)
        assert running.asked == []


@pytest.mark.full  # a vocabulary of the published size takes seconds to read
@pytest.mark.usefixtures("real_table")
def test_a_checkpoint_with_the_published_mask_id_fits_the_table_as_it_is(
    bare: Path, policy: Policy, tmp_path: Path
) -> None:
    """By both commands, the server in a process of its own."""
    publish(bare, tmp_path / "SDAR")
    said = texts(policy, expected(policy))
    with either("sglang") as (written, _):
        common = ["--backbone", str(tmp_path / "SDAR"), "--engine", written]
        done = answered(*QUESTIONS, *common, *WINDOW, "--json")
        assert [json.loads(line)["answer"] for line in done.stdout.splitlines()] == said
        words = [sys.executable, "-m", "dare", "serve", *common, "--port", "0", "--set", "gen_length=16"]
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment) as child:
            try:
                assert child.stdout is not None
                line, _, url = child.stdout.readline().strip().rpartition(" ")
                assert line == "serving SDAR at"
                body = {"messages": [{"role": "user", "content": QUESTIONS[0]}]}
                whole = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60).json()
                assert whole["choices"][0]["message"]["content"] == said[0]
                assert httpx.post(f"{url}/v1/likelihood", json={"choices": [{"continuation": "1"}]}).status_code == 501
                child.send_signal(signal.SIGTERM)
                assert child.wait(30) == 0
            finally:
                child.kill()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--engine", "vllm"], "vllm decodes no diffusion model, and SDARForCausalLM is one"),
        (["--engine", "sglang", "--steps", "2"], "no step schedule"),
        (["--engine", "lmdeploy:0.11.0@http://127.0.0.1:9"], "lmdeploy 0.11.0 is outside 0.12.2 to 0.18.0"),
        (["--engine", "lmdeploy@http://127.0.0.1:9"], "cannot tell its version"),
        (["--engine", "sgl"], "there is no engine 'sgl'"),
        (["--engine-set", "tp_size=2"], "--engine-set and --unseeded say something of an engine: name it"),
        (["--unseeded"], "--engine-set and --unseeded say something of an engine: name it"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "serve"])
def test_a_choice_that_cannot_work_ends_with_a_sentence_and_imports_no_engine(
    command: str, words: list[str], sentence: str, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "sglang", None)  # importing it would be another sentence
    monkeypatch.setitem(sys.modules, "vllm", None)
    steps = ["--set", "steps_per_block=2"] if command == "serve" and "--steps" in words else []
    words = words[:2] + steps if steps else words
    asked = ["S1"] if command == "generate" else ["--port", "0"]
    assert sentence in refusal(command, *asked, "--backbone", str(bare), *words)


def test_an_engine_that_is_not_there_is_one_sentence(bare: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    common = ["generate", "S1", "--backbone", str(bare), *WINDOW, "--engine"]
    monkeypatch.setitem(sys.modules, "sglang", None)
    assert "install the extra, dare[sglang]" in refusal(*common, "sglang")
    monkeypatch.setitem(sys.modules, "sglang", sglang_module(version="0.4.1"))
    assert "sglang 0.4.1 is outside 0.5.9 to 0.5.23" in refusal(*common, "sglang")
    monkeypatch.setitem(sys.modules, "sglang", sglang_module())
    assert "sglang did not start (unknown fields ['wheels'])" in refusal(*common, "sglang", "--engine-set", "wheels=4")
    wrong = ["--engine-set", "dllm_algorithm=LowConfidence"]
    assert "is given dllm_algorithm by the checkpoint" in refusal(*common, "sglang", *wrong)
    with either("sglang") as (written, _):
        pass
    assert "start the server first" in refusal(*common, written)
    with lmdeploy_server(LMDEPLOY) as running:
        assert "refused /server_info with 404" in refusal(*common, f"sglang@{running.url}")


@pytest.mark.parametrize(
    ("behaviour", "sentence"),
    [
        ("dies", "ended the connection during /generate"),
        ("refuses", "refused /generate with 500"),
        ("aborts", "ended a row with"),
    ],
)
@pytest.mark.parametrize("engine", ["sglang", "lmdeploy"])
def test_a_server_that_fails_is_one_sentence(engine: str, behaviour: Any, sentence: str, bare: Path) -> None:
    with either(engine, behaviour) as (written, _):
        assert sentence in refusal("generate", "S1", "--backbone", str(bare), *WINDOW, "--engine", written)


def test_an_engine_that_fails_the_probe_answers_nothing(bare: Path) -> None:
    with either("lmdeploy", "deaf") as (written, running):
        common = ["--backbone", str(bare), *WINDOW, "--temperature", "1", "--unseeded", "--engine", written]
        assert "the temperature is ignored" in refusal("generate", "S1", *common)
        asked = [body["input_ids"] for path, body in running.asked if path == "/generate"]
    assert len(asked) == 16  # eight rows of one prompt, at temperature 0 and at 1
    assert len({tuple(prompt) for prompt in asked}) == 1


# dare serve


@contextmanager
def served(of: Policy) -> Iterator[httpx.Client]:
    """A real server on a free port."""
    with listen("127.0.0.1", 0, False, None) as listening:
        config = uvicorn.Config(make_app(of, Limits()), log_level="critical", access_log=False, ws="none")
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            with httpx.Client(base_url=url_of(listening), timeout=60) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


def test_a_served_answer_is_the_engines_and_says_what_is_not_known(policy: Policy) -> None:
    expected_texts = texts(policy, expected(policy))
    with (
        either("sglang") as (written, _),
        decoded_by(parse_choice(written), policy) as decoded,
        served(decoded) as http,
    ):
        for question, text in zip(QUESTIONS, expected_texts, strict=True):
            body = {"messages": [{"role": "user", "content": question}]}
            returned = {"extra": {"return": ["token_ids", "step_map", "nfe"]}}
            whole = http.post("/v1/chat/completions", json=body | returned).json()
            assert whole["choices"][0]["message"]["content"] == text
            assert whole["choices"][0]["extra"]["nfe"] is None
            assert whole["choices"][0]["extra"]["step_map"] is None
            assert whole["usage"].keys() == {"prompt_tokens", "completion_tokens", "total_tokens"}
            options = {"stream": True, "stream_options": {"include_usage": True}}
            with http.stream("POST", "/v1/chat/completions", json=body | options) as response:
                lines = [line.removeprefix("data: ") for line in response.iter_lines() if line]
            chunks = [json.loads(line) for line in lines[:-1]]
            deltas = [choice["delta"].get("content", "") for chunk in chunks for choice in chunk["choices"]]
            assert "".join(deltas) == text
            assert chunks[-1]["usage"] == whole["usage"]
        counters = http.get("/metrics").text
        assert "dare_batches_total 8" in counters
        assert "dare_forwards_total" not in counters
        assert http.get("/v1/models").json()["data"][0]["extra"]["engine"] == "sglang 0.5.9"


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        (
            "likelihood",
            {"choices": [{"continuation": "1"}]},
            501,
            "sglang 0.5.9 decodes here and computes no likelihood",
        ),
        ("completions", {"prompt": "S1", "temperature": 1}, 400, "takes the argmax whatever temperature"),
        ("completions", {"prompt": "S1", "stream": True, "temperature": 1}, 400, "takes the argmax"),
        ("completions", {"prompt": "S1", "extra": {"threshold": 0.5}}, 400, "was started with"),
        ("completions", {"prompt": [18, INSIDE]}, 400, f"holds the mask token {INSIDE}"),
        ("completions", {"prompt": [[18], []]}, 400, "cannot continue a prompt that is empty"),
    ],
)
def test_a_request_that_the_engine_cannot_honour_gets_one_sentence(
    path: str, body: dict[str, Any], status: int, sentence: str, policy: Policy
) -> None:
    with either("sglang") as (written, running), decoded_by(parse_choice(written), policy) as decoded:
        before = len(running.asked)
        with served(decoded) as http:
            done = http.post(f"/v1/{path}", json=body)
        assert done.status_code == status, done.text
        assert set(done.json()["error"]) == {"message", "type", "param", "code"}
        assert sentence in done.json()["error"]["message"]
        assert len(running.asked) == before


def test_a_seed_that_would_change_nothing_is_refused_and_none_is_needed(policy: Policy) -> None:
    body = {"prompt": "S1", "temperature": 1}
    with (
        either("lmdeploy") as (written, _),
        decoded_by(parse_choice(written), policy, seeded=False) as decoded,
        served(decoded) as http,
    ):
        refused = http.post("/v1/completions", json={**body, "seed": 5})
        assert refused.status_code == 400
        assert "seed is 5, and lmdeploy 0.12.3 takes none" in refused.json()["error"]["message"]
        assert http.post("/v1/completions", json=body).status_code == 200
        assert http.post("/v1/completions", json={"prompt": "S1", "seed": 5}).status_code == 200


def test_an_engine_that_fails_under_a_server_is_an_error_that_does_not_say_where_it_is(policy: Policy) -> None:
    with (
        either("sglang") as (written, running),
        decoded_by(parse_choice(written), policy) as decoded,
        served(decoded) as http,
    ):
        assert http.post("/v1/completions", json={"prompt": "S1"}).status_code == 200
        running.engine.behaviour = "aborts"
        failed = http.post("/v1/completions", json={"prompt": "S1"})
        running.engine.behaviour = "honest"
        assert http.post("/v1/completions", json={"prompt": "S1"}).status_code == 200
    assert failed.status_code == 500
    assert "the engine failed on this request (EngineReplyError)" in failed.json()["error"]["message"]
    assert written.rpartition(":")[2] not in failed.text


# Documents


@pytest.mark.usefixtures("real_table")
def test_the_documented_commands_start_the_servers_for_the_defaults_of_the_commands(tmp_path: Path) -> None:
    document = (Path(__file__).parent.parent / "docs" / "engines.md").read_text()
    sdar = ServedModel("SDARForCausalLM", (151643, 151645), 151643, COMPILED_IN, BLOCK)
    config = open_policy("sdar-tiny", with_weights=False).sampling  # greedy, a token a step
    started = sglang.plan(Serving(TABLE["sglang"], None, sdar), config)
    command = " ".join(started.command(Path("CHECKPOINT"), tmp_path)).replace(f"{tmp_path}/", "")
    assert f"\n{command}\n" in document
    assert all(f"`{line}`" in document for line in (tmp_path / "dllm-algorithm.yaml").read_text().splitlines())
    command = " ".join(lmdeploy.plan(Serving(TABLE["lmdeploy"], None, sdar), config).command(Path("CHECKPOINT")))
    assert f"\n{command}\n" in document


# Evaluation


class Unreported:
    """A backbone whose forwards nobody counted."""

    def __init__(self, backbone: Any) -> None:
        self._backbone = backbone

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backbone, name)

    def sample(self, *asked: Any) -> Samples:
        samples: Samples = self._backbone.sample(*asked)
        samples.nfe.fill_(UNRECORDED)
        return samples


def test_an_evaluation_stores_no_score_without_its_cost(tmp_path: Path) -> None:
    backbone = load_family("sdar").tiny("0123456789SC+-*/()= ", generator_for(0, "tiny"))
    config = SamplingConfig(gen_length=4, block_length=4, steps_per_block=4)
    task = load_task("sudoku")
    protocol = TaskProtocol(task="sudoku", task_version=task.version, sampling=config, limit=2)
    spec = EvaluateSpec(protocols=(protocol,), trained=False)
    with closing(EventLog(tmp_path)) as events:
        with pytest.raises(EvaluationError, match="does not report the forwards of an answer"):
            evaluate(spec, cast(Backbone, Unreported(backbone)), tmp_path, 0, None, events)
        assert (tmp_path / "predictions" / "sudoku.jsonl").read_text() == ""
        done = evaluate(spec, backbone, tmp_path, 0, None, events)
    assert {score.n for score in done.scores} == {2}
    assert done.usage.forwards > 0
