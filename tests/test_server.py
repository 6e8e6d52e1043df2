"""`dare serve`: the same answers as the sampler's whoever asks beside, and a sentence for every request it refuses."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import cache, partial
from itertools import permutations
from typing import Any

import httpx
import pytest
import torch
import uvicorn
from hypothesis import given
from hypothesis import strategies as st

from dare.likelihood import log_likelihoods
from dare.policy import Policy, RequestError, open_policy
from dare.seeds import generator_for
from dare.server.app import Limits, listen, make_app, url_of
from dare.server.rows import certain, cut
from dare.types import NoisyViews, Samples

NAMES = ("llada-tiny", "sdar-tiny")
SUDOKU = "S0321003004002100"
PUZZLES = [SUDOKU, "C1 2 3=6", "S1234341221434321", "C4 5 6=15", "C2 7=9", "S1"]


@cache
def policy(name: str) -> Policy:
    return open_policy(name, device="cpu")


@contextmanager
def served(of: Policy, limits: Limits | None = None, key: str | None = None) -> Iterator[httpx.Client]:
    """A real server on a free port."""
    with listen("127.0.0.1", 0, False, None) as listening:
        config = uvicorn.Config(
            make_app(of, limits or Limits(), key), log_level="critical", access_log=False, ws="none"
        )
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            with httpx.Client(base_url=url_of(listening), timeout=60, headers=headers) as client:
                yield client
        finally:
            server.should_exit = True
            thread.join()


@pytest.fixture(scope="module", params=NAMES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def client(name: str) -> Iterator[httpx.Client]:
    with served(policy(name)) as client:
        yield client


@pytest.fixture(scope="module")
def tiny() -> Iterator[httpx.Client]:
    """A server with narrow limits."""
    with served(policy("llada-tiny"), Limits(batch=4, queue=4, rows=6, body_bytes=20_000)) as client:
        yield client


def chat(client: httpx.Client, text: str, **more: Any) -> httpx.Response:
    return client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": text}], **more})


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def sampled(name: str, text: str, seed: int = 0, choice: int = 0, **settings: Any) -> Samples:
    of = policy(name)
    return of.backbone.sample([of.prompt(text)], of.configure(settings), [generator_for(seed, "serve", choice)])


# Answers


def test_a_served_answer_is_the_samplers(name: str, client: httpx.Client) -> None:
    for text in PUZZLES[:3]:
        samples = sampled(name, text)
        kept = samples.completion[0]
        body = chat(client, text, extra={"return": ["token_ids", "step_map", "nfe"]}).json()
        [choice] = body["choices"]
        assert choice["message"]["content"] == policy(name).tokenizer.decode(samples.ids[0][kept].tolist())
        assert choice["finish_reason"] == ("length" if bool(samples.truncated[0]) else "stop")
        extra = choice["extra"]
        assert extra["token_ids"] == samples.ids[0][kept].tolist()
        assert extra["step_map"] == samples.step_map[0][kept].tolist()
        assert extra["nfe"] <= int(samples.nfe[0])
        assert body["usage"]["prompt_tokens"] == len(policy(name).prompt(text))
        assert body["usage"]["completion_tokens"] == int(kept.sum())
        assert body["usage"]["nfe"] == extra["nfe"]
        assert body["model"] == name


def test_the_same_seed_gives_the_same_answers_and_none_gives_new_ones(name: str, client: httpx.Client) -> None:
    def texts(**more: Any) -> list[str]:
        body = chat(client, "C1 2 3=6", n=3, temperature=3.0, **more).json()
        return [choice["message"]["content"] for choice in body["choices"]]

    assert texts(seed=5) == texts(seed=5) != texts(seed=6)
    assert len(set(texts(seed=5))) > 1
    assert texts() != texts()
    for number, text in enumerate(texts(seed=5)):
        samples = sampled(name, "C1 2 3=6", 5, number, temperature=3.0)
        assert text == policy(name).tokenizer.decode(samples.ids[0][samples.completion[0]].tolist())


def test_answers_do_not_depend_on_who_asks_at_the_same_time(name: str, client: httpx.Client) -> None:
    def ask(number: int) -> list[Any]:
        text, settings = PUZZLES[number % len(PUZZLES)], {"temperature": 1.0, "seed": number}
        body = chat(client, text, **settings, extra={"return": ["token_ids", "nfe"]}).json()
        return [choice["extra"] for choice in body["choices"]]

    alone = [ask(number) for number in range(12)]
    before = client.get("/metrics").text
    with ThreadPoolExecutor(12) as pool:
        together = list(pool.map(ask, range(12)))
    assert together == alone
    batches = counted(client.get("/metrics").text, "dare_batches_total") - counted(before, "dare_batches_total")
    assert batches < 12  # some were decoded together, or the test says nothing


def counted(text: str, name: str) -> float:
    return next(float(line.split()[-1]) for line in text.splitlines() if line.startswith(name + " "))


def test_prompts_go_as_text_ids_or_lists_of_either(name: str, client: httpx.Client) -> None:
    ids = policy(name).text("S12")

    def texts(prompt: Any) -> list[str]:
        done = client.post("/v1/completions", json={"prompt": prompt, "temperature": 1, "seed": 1})
        assert done.status_code == 200, done.text
        return [choice["text"] for choice in done.json()["choices"]]

    [one] = texts("S12")
    assert texts(ids) == [one]
    assert texts(["S12", "S12"]) == texts([ids, ids]) == [one, one]


def test_an_answer_is_cut_at_max_tokens_and_before_a_stop_string(name: str, client: httpx.Client) -> None:
    whole = chat(client, SUDOKU).json()["choices"][0]["message"]["content"]
    fixed = {"extra": {"gen_length": 20}}  # the same canvas, so that the same tokens are decoded
    for count in (1, 7):
        body = chat(client, SUDOKU, max_tokens=count, **fixed).json()
        assert body["choices"][0]["message"]["content"] == whole[:count]
        assert body["choices"][0]["finish_reason"] == "length"
        assert body["usage"]["completion_tokens"] == count
    for stop in (whole[5:7], [whole[9], "x"], "4"):
        body = chat(client, SUDOKU, stop=stop, **fixed).json()
        places = [whole.find(one) for one in ([stop] if isinstance(stop, str) else stop) if one in whole]
        assert body["choices"][0]["message"]["content"] == whole[: min(places)]
        assert body["choices"][0]["finish_reason"] == "stop"


def test_max_tokens_is_rounded_up_to_blocks(name: str, client: httpx.Client) -> None:
    block = 1 if name == "llada-tiny" else 4  # llada-tiny decodes its canvas as one block of whatever length
    for tokens in (1, 4, 5, 9):
        body = chat(client, "C1 2=3", max_tokens=tokens, extra={"return": ["token_ids"]}).json()
        expected = sampled(name, "C1 2=3", gen_length=-(-tokens // block) * block)
        ids = expected.ids[0][expected.completion[0]].tolist()
        assert body["choices"][0]["extra"]["token_ids"] == ids[:tokens]


def test_a_preset_of_a_request_is_the_samplers(name: str, client: httpx.Client) -> None:
    preset = {"llada-tiny": "fast_dllm_dual", "sdar-tiny": "sdar_dynamic"}[name]
    of = policy(name)
    body = chat(client, SUDOKU, max_tokens=30, extra={"preset": preset, "return": ["token_ids"]}).json()
    config = of.with_preset(preset, {"gen_length": 32}).sampling
    samples = of.backbone.sample([of.prompt(SUDOKU)], config, [generator_for(0, "any")])
    expected = samples.ids[0][samples.completion[0]].tolist()[:30]
    assert body["choices"][0]["extra"]["token_ids"] == expected


def test_a_stream_is_the_answer_in_pieces(name: str, client: httpx.Client) -> None:
    body = {"messages": [{"role": "user", "content": SUDOKU}], "n": 3, "temperature": 1.0, "seed": 4}
    whole = client.post("/v1/chat/completions", json=body).json()
    options = {"stream": True, "stream_options": {"include_usage": True}}
    with client.stream("POST", "/v1/chat/completions", json=body | options) as response:
        assert response.headers["content-type"].startswith("text/event-stream")
        *chunks, usage = events(response)
    assert usage["usage"] == whole["usage"]
    assert len({chunk["id"] for chunk in (*chunks, usage)}) == 1
    for index, expected in enumerate(whole["choices"]):
        mine = [chunk["choices"][0] for chunk in chunks if chunk["choices"][0]["index"] == index]
        assert mine[0]["delta"]["role"] == "assistant"
        assert "".join(one["delta"].get("content", "") for one in mine) == expected["message"]["content"]
        assert [one["finish_reason"] for one in mine] == [None] * (len(mine) - 1) + [expected["finish_reason"]]
        if name == "sdar-tiny":
            assert len(mine) > 3  # block by block


@given(st.text("ab", max_size=12), st.lists(st.text("ab", min_size=1, max_size=3), max_size=3), st.integers(1, 12))
def test_what_is_streamed_is_never_taken_back(text: str, stops: list[str], limit: int) -> None:
    letters = Letters()
    sent = ""
    for settled in range(len(text) + 1):
        now = cut(letters, [ord(character) for character in text[:settled]], (), stops, limit)
        piece = now.text if now.reason else certain(now.text, stops)
        assert piece.startswith(sent)
        sent = piece
        if now.reason:
            break
    kept = text[:limit]
    found = [(place + len(stop), place) for stop in stops if (place := kept.find(stop)) >= 0]
    if found:
        assert (sent, now.reason) == (text[: min(found)[1]], "stop")
        assert cut(letters, [ord(character) for character in text], (), stops, limit) == now  # all at once is the same
        assert any(stop in text[: now.tokens] for stop in stops)
        assert not any(stop in text[: now.tokens - 1] for stop in stops)
    elif len(text) >= limit:
        assert (sent, now.reason, now.tokens) == (text[:limit], "length", limit)
    else:
        assert now.reason is None
        assert now.text == text


class Letters:
    """A tokenizer whose tokens are characters; only what `cut` uses."""

    def decode(self, ids: list[int]) -> str:
        return "".join(map(chr, ids))

    def prompt_ids(self, text: str) -> list[int]:
        raise NotImplementedError

    answer_ids = pieces = save = prompt_ids


# Likelihood


def chain(of: Policy, context: list[int], ids: list[int], order: tuple[int, ...]) -> float:
    """log-probability of revealing `ids` one by one in this order, one forward each."""
    total = 0.0
    for shown in range(len(order)):
        hidden = order[shown:]
        row = [*context, *(of.backbone.mask_id if place in hidden else token for place, token in enumerate(ids))]
        target = torch.tensor([[*context, *ids]])
        score = torch.zeros_like(target, dtype=torch.bool)
        score[0, len(context) + order[shown]] = True
        everywhere = torch.ones_like(score)
        views = NoisyViews(
            torch.tensor([row]), target, score, score.double(), torch.zeros(1, dtype=torch.long), everywhere, score
        )
        with torch.no_grad():
            total += float(of.backbone.logprobs(of.backbone.model, views).sum())
    return total


def test_a_likelihood_is_the_mean_over_all_orders(name: str, client: httpx.Client) -> None:
    of = policy(name)
    context = of.prompt(SUDOKU)[: 24 if name == "sdar-tiny" else None]  # whole blocks: three tokens share one
    for text in ("4", "43", "432"):
        ids = of.text(text)
        orders = list(permutations(range(len(ids))))
        expected = sum(chain(of, context, ids, order) for order in orders) / len(orders)
        body = {"choices": [{"context": context, "continuation": text}], "mc_samples": 7}
        done = client.post("/v1/likelihood", json=body).json()
        [choice] = done["choices"]
        assert choice["log_likelihood"] == pytest.approx(expected, abs=1e-4)
        assert choice["standard_error"] == 0
        assert choice["nfe"] == 2 ** len(ids) - 1 == done["usage"]["nfe"]
        assert choice["tokens"] == len(ids)


def test_the_likelihoods_of_all_single_tokens_add_up_to_one(name: str) -> None:
    of = policy(name)
    vocabulary = int(of.backbone.model.config.vocab_size)  # type: ignore[union-attr, arg-type]
    pairs = [(of.prompt(SUDOKU), [token]) for token in range(vocabulary) if token != of.backbone.mask_id]
    total = sum(torch.tensor(one.logp).exp() for one in log_likelihoods(of.backbone, pairs, 1, 0, 8))
    assert float(total) == pytest.approx(1, abs=1e-4)


def test_the_monte_carlo_likelihood_agrees_with_the_exact_one(name: str) -> None:
    of = policy(name)
    pair = (of.prompt(SUDOKU), of.text("432102"))
    [exact] = log_likelihoods(of.backbone, [pair], 63, 0, 32)
    drawn = [log_likelihoods(of.backbone, [pair], 12, seed, 32)[0] for seed in range(24)]
    mean = sum(one.logp for one in drawn) / len(drawn)
    error = float(torch.tensor([one.logp for one in drawn]).std()) / len(drawn) ** 0.5
    assert exact.standard_error == 0 < drawn[0].standard_error
    assert abs(mean - exact.logp) < 4 * error
    assert log_likelihoods(of.backbone, [pair], 12, 3, 5) == [
        pytest.approx(one) if isinstance(one, float) else one for one in log_likelihoods(of.backbone, [pair], 12, 3, 5)
    ]


def test_choices_scored_in_one_forward_have_the_likelihoods_that_they_have_alone(name: str) -> None:
    of = policy(name)
    texts = ["1", "23", "4", "321", "02", "43", "4321"]
    pairs = [(of.prompt(SUDOKU), of.text(text)) for text in texts] + [(of.prompt("S12"), of.text("3"))]
    alone = [log_likelihoods(of.backbone, [pair], 5, 1, 4)[0] for pair in pairs]
    together = log_likelihoods(of.backbone, pairs, 5, 1, 64)
    assert [one.logp for one in together] == pytest.approx([one.logp for one in alone], abs=1e-5)
    assert [one.standard_error for one in together] == pytest.approx([one.standard_error for one in alone], abs=1e-5)
    assert [(one.tokens, one.forwards) for one in together] == [(one.tokens, one.forwards) for one in alone]


def test_a_choice_that_the_policy_writes_is_likelier_than_one_it_does_not(name: str, client: httpx.Client) -> None:
    written = chat(client, SUDOKU).json()["choices"][0]["message"]["content"]
    messages = [{"role": "user", "content": SUDOKU}]
    choices = [{"context": messages, "continuation": text} for text in (written, written[::-1])]
    done = client.post("/v1/likelihood", json={"choices": choices, "mc_samples": 32}).json()
    good, bad = (choice["log_likelihood"] for choice in done["choices"])
    assert good > bad


# Refusals


@pytest.mark.parametrize(
    ("path", "body", "status", "sentence"),
    [
        ("completions", b"{", 400, "the body is not JSON"),
        ("completions", b"[1]", 400, "the body must be a JSON object"),
        ("completions", b"\xff", 400, "body"),
        ("completions", b"[" * 9000, 400, "body"),
        ("completions", {}, 400, "prompt is missing"),
        ("completions", {"prompt": 3}, 400, "prompt"),
        ("completions", {"prompt": []}, 400, "there is no prompt"),
        ("completions", {"prompt": [5, 10**30]}, 400, "is not among the 31 of llada-tiny"),
        ("completions", {"prompt": [5, 31]}, 400, "token id 31 is not among the 31 of llada-tiny"),
        ("completions", {"prompt": [5, -1]}, 400, "token id -1"),
        ("completions", {"prompt": "é"}, 400, "no token for 'é'"),
        ("completions", {"prompt": "\ud800"}, 400, "no token for '\\ud800'"),
        ("completions", {"prompt": "1" * 120}, 400, "together more than the 128 positions"),
        ("completions", {"prompt": "1", "max_tokens": 128}, 400, "together more than the 128 positions"),
        ("completions", {"prompt": "1", "max_tokens": 0}, 400, "max_tokens is 0"),
        ("completions", {"prompt": "1", "max_tokens": 10**12}, 400, "more than the 128 positions"),
        ("completions", {"prompt": "1", "temperature": -1}, 400, "temperature is -1"),
        ("completions", {"prompt": "1", "top_p": 0}, 400, "top_p is 0"),
        ("completions", {"prompt": "1", "n": 7}, 400, "1 prompts times n = 7 are 7 rows; one request may have 6"),
        ("completions", {"prompt": ["1"] * 5}, 429, "the queue holds 4; try again later"),
        ("completions", {"prompt": "1", "stop": [""]}, 400, "a stop string has 0 characters"),
        ("completions", {"prompt": "1", "stop": ["x"] * 17}, 400, "17 stop strings"),
        ("completions", {"prompt": "1", "logprobs": 1}, 400, "ask /v1/likelihood"),
        ("completions", {"prompt": "1", "echo": True}, 400, "ask /v1/likelihood"),
        ("completions", {"prompt": "1", "presence_penalty": 0.5}, 400, "presence_penalty is 0.5"),
        ("completions", {"prompt": "1", "threshold": 0.9}, 400, "settings of the decoder belong into `extra`"),
        ("completions", {"prompt": "1", "extra": {"thresholds": 0.9}}, 400, "Did you mean `threshold`?"),
        ("completions", {"prompt": "1", "extra": {"threshold": 2}}, 400, "threshold is 2"),
        ("completions", {"prompt": "1", "extra": {"block_length": 0}, "max_tokens": 4}, 400, "block_length is 0"),
        ("completions", {"prompt": "1", "extra": {"preset": "lada"}}, 400, "there is no preset 'lada'"),
        ("completions", {"prompt": "1", "extra": {"preset": 3}}, 400, "extra.preset is 3"),
        ("completions", {"prompt": "1", "extra": {"return": ["logits"]}}, 400, "extra.return has 'logits'"),
        ("completions", {"prompt": "1", "model": "gpt"}, 404, "model 'gpt' is not served here"),
        ("completions", {"prompt": "1" * 20_000}, 413, "a body may have 20000 bytes"),
        ("chat/completions", {"messages": []}, 400, "messages is []"),
        ("chat/completions", {"messages": [{"role": "wizard", "content": "1"}]}, 400, "role 'wizard'"),
        ("chat/completions", {"messages": [{"role": "user"}]}, 400, "messages.0.content is missing"),
        ("chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, "image_url"),
        ("chat/completions", {"messages": [{"role": "assistant", "content": "1"}]}, 400, "at least one message"),
        ("chat/completions", {"messages": [{"role": "user", "content": "1"}], "tools": [{}]}, 400, "tools is [{}]"),
        ("likelihood", {"choices": []}, 400, "choices is []"),
        ("likelihood", {"choices": [{"continuation": ""}]}, 400, "a continuation has no tokens"),
        ("likelihood", {"choices": [{"continuation": "1"}] * 7}, 400, "there are 7 choices"),
        ("likelihood", {"choices": [{"continuation": "1" * 129}]}, 400, "128 positions"),
        ("likelihood", {"choices": [{"continuation": "1"}], "mc_samples": 0}, 400, "mc_samples is 0"),
        ("nothing", {}, 404, "Not Found"),
    ],
)
def test_a_request_that_makes_no_sense_gets_one_sentence(
    tiny: httpx.Client, path: str, body: Any, status: int, sentence: str
) -> None:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    done = tiny.post(f"/v1/{path}", content=content, headers={"Content-Type": "application/json"})
    assert done.status_code == status, done.text
    error = done.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert sentence in error["message"]
    assert "\n" not in error["message"]
    assert tiny.get("/health").json() == {"status": "ok", "model": "llada-tiny"}


def test_fields_that_change_nothing_are_accepted(tiny: httpx.Client) -> None:
    neutral = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0,
        "logprobs": None,
        "user": "me",
        "top_p": 0.9,
        "top_k": -1,
    }
    more = {"logit_bias": {}, "response_format": {"type": "text"}, "best_of": 1, "echo": False, "suffix": None}
    plain = tiny.post("/v1/completions", json={"prompt": "S1"}).json()
    done = tiny.post("/v1/completions", json={"prompt": "S1", **neutral, **more})
    assert done.status_code == 200, done.text
    assert done.json()["choices"] == plain["choices"]


def test_a_body_without_a_length_is_cut_off_too(tiny: httpx.Client) -> None:
    def pieces() -> Iterator[bytes]:
        yield b'{"prompt": "'
        for _ in range(30):
            yield b"1" * 1000

    done = tiny.post("/v1/completions", content=pieces(), headers={"Content-Type": "application/json"})
    assert done.status_code == 413, done.text


def test_only_local_names_are_answered_without_a_key(tiny: httpx.Client) -> None:
    for host, status in (("evil.example", 403), ("evil.example:80", 403), ("localhost:1", 200), ("[::1]:8000", 200)):
        assert tiny.get("/health", headers={"Host": host}).status_code == status


def test_a_key_is_asked_for_everywhere_but_at_the_health_check() -> None:
    with served(policy("llada-tiny"), key="secret") as client:
        assert client.get("/v1/models").status_code == 200
        for wrong in ("", "Bearer wrong", "secret2"):
            refused = client.get("/v1/models", headers={"Authorization": wrong})
            assert refused.status_code == 401
            assert refused.json()["error"]["code"] == "invalid_api_key"
            assert client.get("/health", headers={"Authorization": wrong}).status_code == 200


@pytest.mark.parametrize(
    ("host", "port", "allow", "key", "sentence"),
    [
        ("0.0.0.0", 0, False, None, "add --allow-remote and set DARE_API_KEY"),
        ("0.0.0.0", 0, True, None, "add --allow-remote and set DARE_API_KEY"),
        ("0.0.0.0", 0, False, "key", "add --allow-remote and set DARE_API_KEY"),
        ("127.0.0.1", 70_000, False, None, "--port is 70000"),
        ("no such host", 0, False, None, "cannot be found"),
    ],
)
def test_an_address_that_is_not_safe_is_refused(
    host: str, port: int, allow: bool, key: str | None, sentence: str
) -> None:
    with pytest.raises(RequestError, match=sentence), listen(host, port, allow, key):
        pass


def test_a_port_that_is_taken_is_named() -> None:
    with listen("127.0.0.1", 0, False, None) as first:
        port = first.getsockname()[1]
        with (
            pytest.raises(RequestError, match=f"port {port}: Address already in use"),
            listen("127.0.0.1", port, False, None),
        ):
            pass


# Queue


def slow(name: str = "llada-tiny") -> Policy:
    """Decoding that takes a good part of a second: a long canvas, a token per forward."""
    return policy(name).with_settings({"gen_length": 64})


def wait_for(condition: Any, seconds: float = 20) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.01)


def test_a_full_queue_refuses_and_empties_again() -> None:
    with served(slow(), Limits(batch=1, queue=2)) as client, ThreadPoolExecutor(8) as pool:
        asked = [pool.submit(chat, client, "S1", extra={"early_stop": "never"}) for _ in range(8)]
        done = [future.result() for future in asked]
        statuses = sorted(one.status_code for one in done)
        assert set(statuses) == {200, 429}
        refused = next(one for one in done if one.status_code == 429)
        assert refused.headers["retry-after"] == "1"
        assert refused.json()["error"]["type"] == "rate_limit_error"
        assert chat(client, "S1").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_client_that_goes_away_frees_the_model(stream: bool) -> None:
    with served(slow(), Limits(batch=1)) as client:
        address = (client.base_url.host, client.base_url.port)
        body = json.dumps({"prompt": ["S1"] * 100, "stream": stream, "extra": {"early_stop": "never"}}).encode()
        head = ["POST /v1/completions HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        head.append(f"Content-Length: {len(body)}")
        with socket.create_connection(address) as gone:
            gone.sendall("\r\n".join([*head, "", ""]).encode() + body)
            wait_for(lambda: counted(client.get("/metrics").text, "dare_rows_running") == 1)
        wait_for(lambda: counted(client.get("/metrics").text, "dare_queue_length") == 0, 5)
        assert chat(client, "S1").status_code == 200
        text = client.get("/metrics").text
        assert counted(text, "dare_batch_rows_total") < 50
        assert 'dare_requests_total{endpoint="/v1/completions",status="' in text


def test_a_batch_that_fails_is_an_error_and_the_next_one_is_served() -> None:
    of = open_policy("sdar-tiny", device="cpu")
    with served(of) as client:
        assert chat(client, SUDOKU).status_code == 200
        model = of.backbone.model

        def out_of_memory(*_: object) -> None:
            raise torch.OutOfMemoryError("no memory")

        broken = model.register_forward_pre_hook(out_of_memory)
        failed = chat(client, SUDOKU)
        assert failed.status_code == 500
        assert "the model failed on this request (OutOfMemoryError)" in failed.json()["error"]["message"]
        with client.stream("POST", "/v1/completions", json={"prompt": "S1", "stream": True}) as response:
            [error] = events(response)
        assert "OutOfMemoryError" in error["error"]["message"]
        broken.remove()
        assert chat(client, SUDOKU).status_code == 200


def test_settings_that_only_the_sampler_can_refuse_are_the_requests_fault(tiny: httpx.Client) -> None:
    with served(policy("sdar-tiny")) as client:
        done = chat(client, SUDOKU, extra={"cache": "dual"})  # block families have an exact cache of their own
        assert done.status_code == 400, done.text
        assert "cache" in done.json()["error"]["message"]


def test_metrics_count_what_was_done() -> None:
    with served(policy("sdar-tiny")) as client:
        usage = chat(client, SUDOKU).json()["usage"]
        chat(client, "é")
        text = client.get("/metrics").text
        assert 'dare_requests_total{endpoint="/v1/chat/completions",status="200"} 1' in text
        assert 'dare_requests_total{endpoint="/v1/chat/completions",status="400"} 1' in text
        assert counted(text, "dare_prompt_tokens_total") == usage["prompt_tokens"]
        assert counted(text, "dare_completion_tokens_total") == usage["completion_tokens"]
        assert counted(text, "dare_forwards_total") == usage["nfe"]
        assert counted(text, "dare_request_seconds_count") == 2
        assert counted(text, "dare_queue_length") == 0
        assert all(line.startswith("#") or len(line.rsplit(" ", 1)) == 2 for line in text.splitlines())


def test_the_model_is_listed_with_its_decoding(name: str, client: httpx.Client) -> None:
    [model] = client.get("/v1/models").json()["data"]
    assert model["id"] == name
    assert model["extra"]["context"] == 128
    assert model["extra"]["sampling"]["gen_length"] == 20


# The command


def is_running(url: str) -> bool:
    return counted(httpx.get(f"{url}/metrics").text, "dare_rows_running") > 0


@contextmanager
def killed_at_last(child: subprocess.Popen[str]) -> Iterator[None]:
    """Whatever fails, nothing is left running."""
    try:
        yield
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)


@pytest.mark.full
@pytest.mark.parametrize("module", ["dare", "dare_platform.cli"])
def test_the_command_prints_its_address_and_ends_in_good_order(module: str) -> None:
    """Twice on one port: a server that has ended leaves it free."""
    run = (
        [sys.executable, "-m", "dare"]
        if module == "dare"
        else [sys.executable, "-c", "from dare_platform.cli import main; main()"]
    )
    port = "0"
    for number in (signal.SIGTERM, signal.SIGINT):
        words = [*run, "serve", "--backbone", "sdar-tiny", "--port", port, "--set", "gen_length=64"]
        with (
            subprocess.Popen(
                words,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,
            ) as child,
            killed_at_last(child),
        ):
            assert child.stdout is not None
            said, _, url = child.stdout.readline().strip().rpartition(" ")
            assert said == "serving sdar-tiny at"
            port = url.rpartition(":")[2]
            with ThreadPoolExecutor(1) as pool, httpx.Client(base_url=url, timeout=60) as client:
                running = pool.submit(chat, client, "S1", n=48, temperature=1, extra={"early_stop": "never"})
                wait_for(partial(is_running, url))
                if number == signal.SIGINT:
                    os.killpg(child.pid, number)  # as a terminal does
                else:
                    child.send_signal(number)
                assert running.result().status_code == 200  # it was still answered
            assert child.wait(30) == 0
