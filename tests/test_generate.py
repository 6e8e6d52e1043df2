"""`dare generate`: the canvas on a terminal, answers files that can be continued, and sentences for what cannot be."""

from __future__ import annotations

import io
import json
import os
import pty
import re
import struct
import sys
import unicodedata
from fcntl import ioctl
from functools import cache
from pathlib import Path
from termios import TIOCSWINSZ

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console
from typer.testing import CliRunner, Result

from dare.__main__ import app
from dare.catalog import backbone_directory
from dare.commands.animation import MASK, Animation, Picture, Recording, Scene, mask_width
from dare.commands.text import Cell, lay_out, neutral, shown_lines
from dare.family import load_family
from dare.generate import AnswersFile, Prompt, answers, decoding_name, encode, given_prompts, read_prompts
from dare.policy import Policy, RequestError, open_policy
from dare.sampling.presets import PRESETS
from dare.seeds import generator_for

SUDOKU = "S0321003004002100"
HOSTILE = ["\x1b", "[", "2", "J", "m", "]", "/", "b", "\r", "\n", "\t", "\x9b", "\u202e", "中", "é"]


@cache
def policy(name: str = "llada-tiny") -> Policy:
    return open_policy(name, device="cpu")


def run(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, ["generate", *words], input=stdin)


def refusal(*words: str, stdin: str | None = None) -> str:
    done = run(*words, stdin=stdin)
    assert done.exit_code == 2, done.output
    assert "Traceback" not in done.output
    assert done.stdout == ""
    return done.output.replace("\n", " ")


# Text on a terminal


@given(st.text())
def test_nothing_is_left_that_a_terminal_obeys(text: str) -> None:
    shown = neutral(text)
    assert len(shown) == len(text)
    for before, after in zip(text, shown, strict=True):
        assert after in "\n\t\u200c\u200d" or unicodedata.category(after) not in ("Cc", "Cf", "Cs", "Zl", "Zp")
        assert before == after or unicodedata.category(before) in ("Cc", "Cf", "Cs", "Zl", "Zp")
    assert neutral(shown) == shown


@given(st.lists(st.text(alphabet="ab中é\n[]/", max_size=9)), st.integers(1, 12))
def test_a_layout_keeps_every_character_and_its_width(texts: list[str], width: int) -> None:
    lines = lay_out([Cell(text) for text in texts], width)
    assert "".join(cell.text for line in lines for cell in line) == "".join(texts).replace("\n", "")
    assert all(sum(cell_len(cell.text) for cell in line) <= max(width, 2) for line in lines)


@given(st.lists(st.booleans(), min_size=1, max_size=30), st.integers(1, 10))
def test_what_is_fresh_stays_in_sight(fresh: list[bool], height: int) -> None:
    lines = [[Cell("x", fresh=new)] for new in fresh]
    shown = shown_lines(lines, height)
    assert len(shown) == min(height, len(lines))
    if any(fresh):
        last = max(number for number, new in enumerate(fresh) if new)
        assert any(line is lines[last] for line in shown)


# The canvas


def scene(of: Policy, prompt: str = "", length: int = 20) -> Scene:
    eos = frozenset(of.backbone.eos_ids)
    return Scene(of.tokenizer, eos, prompt, of.name, "subtitle", length, mask_width(of.tokenizer, of.text(prompt)))


def hostile_policy() -> Policy:
    """Random weights over a vocabulary of what one would not want to see interpreted."""
    backbone = load_family("llada").tiny(HOSTILE, generator_for(0, "hostile"))
    made = policy()
    return Policy("[red]x[/]\x1b[2J", backbone, backbone.tokenizer, made.sampling, 128, "none")


def recorded(of: Policy, prompt: str, path: Path, console: Console | None = None, **settings: float) -> str:
    """Animate one answer; the text of the recording."""
    config = of.configure(settings)
    with (
        Recording(path, None) as recording,
        Animation(scene(of, prompt, config.gen_length), console, 0, recording) as shown,
    ):
        samples = of.backbone.sample([of.prompt(prompt)], config, [generator_for(0, "test")], watch=shown.watch)
        shown.conclude(samples)
    return path.read_text(encoding="utf-8")


@pytest.mark.parametrize("name", ["llada-tiny", "sdar-tiny"])
def test_the_canvas_fills_step_by_step_and_ends_as_the_answer(name: str, tmp_path: Path) -> None:
    text = recorded(policy(name), SUDOKU, tmp_path / "frames.txt")
    frames = text.split("\n\n")[:-1]
    masks = [frame.count(MASK) for frame in frames]
    samples = policy(name).backbone.sample(
        [policy(name).prompt(SUDOKU)], policy(name).sampling, [generator_for(0, "test")]
    )
    steps = int(samples.step_map.max())
    assert len(frames) == 1 + steps + 1  # all masked, every step, the end
    assert masks[:-1] == [20 - step for step in range(steps + 1)]
    assert masks[-1] == 0
    answer = policy(name).tokenizer.decode(samples.ids[0][samples.completion[0]].tolist())
    assert answer in frames[-1]
    assert f"step {steps} · NFE {int(samples.nfe[0])}" in frames[-1]
    assert SUDOKU in frames[0]


def test_hostile_tokens_are_shown_and_not_obeyed(tmp_path: Path) -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=60, height=30, color_system="truecolor", _environ={})
    text = recorded(hostile_policy(), "[2J]\x1b[m中", tmp_path / "f.txt", console, gen_length=60, temperature=1.0)
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert all(cell_len(line) <= Recording.WIDTH for line in text.splitlines())
    assert "[red]x[/]" in text
    obeyed = set(re.findall(r"\x1b\[[0-9;?]*([A-Za-z])", out.getvalue()))
    assert obeyed <= set("mAKhl")  # rich: colours, up one line, erase it, cursor off and on
    assert out.getvalue().count("\x1b") == len(re.findall(r"\x1b\[[0-9;?]*[mAKhl]", out.getvalue()))


@pytest.mark.parametrize(("width", "height"), [(1, 1), (9, 4), (30, 8), (44, 10), (200, 60)])
def test_a_canvas_fits_any_terminal(width: int, height: int) -> None:
    vocabulary = torch.arange(5, 20).tolist()
    picture = Picture(ids=tuple(vocabulary * 20), step_map=(1, 2, 0) * 100, nfe=3, seconds=0.1)
    out = io.StringIO()
    console = Console(file=out, width=width, height=height, color_system=None, _environ={})
    console.print(scene(hostile_policy(), "J" * 500, 300).draw(picture, width, height))
    lines = out.getvalue().splitlines()
    assert all(cell_len(line) <= max(width, 2) for line in lines)
    assert len(lines) <= max(height, 8)


def test_an_edited_token_is_counted_and_an_ending_hides_what_lies_behind_it() -> None:
    of = policy()
    ids = of.text("123")
    eos = of.backbone.eos_ids[0]
    shown = scene(of, SUDOKU, 4)
    edited = Picture(
        ids=(ids[0], ids[1], eos, ids[2]), step_map=(1, 1, 2, 2), nfe=2, seconds=0, edited=frozenset({1}), edits=1
    )
    first, second, end, behind = shown.cells(edited)
    assert second.style.underline
    assert second.fresh
    assert not first.fresh
    assert end.text == "∎"
    assert behind.style.dim
    assert "1 edited" in shown.status(edited, 200)[1].plain


def test_bytes_of_one_character_are_shown_together() -> None:
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: number for number, letter in enumerate(letters)}, []))
    backend.pre_tokenizer, backend.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    from dare.tokenizer import ChatTokenizer

    tokenizer = ChatTokenizer(PreTrainedTokenizerFast(tokenizer_object=backend), 0, ())
    ids = tuple(backend.encode("a中🙂b").ids)
    assert len(ids) == 9
    of = Scene(tokenizer, frozenset(), "", "", "", 9)
    whole = of.cells(Picture(ids=ids, step_map=(1,) * 9, nfe=1, seconds=0))
    assert "".join(cell.text for cell in whole) == "a中🙂b"
    half = of.cells(Picture(ids=ids, step_map=(1, 1, 0, 1, 1, 1, 1, 1, 1), nfe=1, seconds=0))
    assert "".join(cell.text for cell in half) == f"a�{MASK}�🙂b"


def test_an_asciicast_has_one_screen_per_frame(tmp_path: Path) -> None:
    header, *screens = map(json.loads, recorded(policy(), SUDOKU, tmp_path / "f.cast").splitlines())
    assert header == {"version": 2, "width": 72, "height": 20}
    assert len(screens) == 22
    assert [time for time, _, _ in screens] == sorted(time for time, _, _ in screens)
    assert all(kind == "o" and screen.startswith("\x1b[H\x1b[2J") for _, kind, screen in screens)


@pytest.mark.full
@pytest.mark.parametrize("colour", [True, False])
def test_on_a_real_terminal_the_canvas_is_shown_and_the_answer_comes_last(colour: bool) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLORTERM": "truecolor"}
        os.environ.pop("NO_COLOR", None)
        if not colour:
            os.environ["NO_COLOR"] = "1"
        os.execv(sys.executable, [sys.executable, "-m", "dare", "generate", SUDOKU, "--delay", "0"])
    ioctl(terminal, TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    shown = b""
    while True:
        try:
            shown += (chunk := os.read(terminal, 65536))
        except OSError:  # how a terminal says that its last program has gone
            break
        if not chunk:
            break
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    text = shown.decode()
    assert ("\x1b[38;2;" in text) == colour
    assert f"{MASK}" in text
    assert re.search(r"\x1b\[\?25h\d{16}\r\n$", text)  # the cursor is back


# Prompts and answers files


def test_prompts_come_as_lines_or_as_json_lines() -> None:
    assert [(p.id, p.asked) for p in read_prompts(b"\xef\xbb\xbfone\r\n\n two\n", "p.txt")] == [
        ("1", "one"),
        ("3", " two"),
    ]
    rows = b'{"prompt": "a"}\n{"id": 7, "messages": [{"role": "user", "content": "b", "x": 1}]}\n'
    assert read_prompts(rows, "standard input") == [
        Prompt("1", "a", "standard input line 1"),
        Prompt("7", ({"role": "user", "content": "b"},), "standard input line 2"),
    ]


@pytest.mark.parametrize(
    ("content", "name", "sentence"),
    [
        (b'{"prompt": "a"}\n{"prompt"\n', "p.jsonl", "p.jsonl line 2 is not JSON"),
        (b"a\n", "p.jsonl", "p.jsonl line 1 is not JSON"),
        (b'{"text": "a"}', "p.jsonl", 'p.jsonl line 1 must be an object with either "prompt" or "messages"'),
        (b'{"prompt": 3}', "p.jsonl", "p.jsonl line 1: prompt is 3; it must be a text"),
        (b'{"messages": [{"role": "user"}]}', "p.jsonl", "p.jsonl line 1: messages must be a list"),
        (b'{"messages": []}', "p.jsonl", "p.jsonl line 1: messages must be a list"),
        (
            b'{"prompt": "a", "id": 1}\n\n{"prompt": "b", "id": "1"}',
            "p.jsonl",
            "line 3 has the id '1' of p.jsonl line 1",
        ),
        (b"\n \n", "p.txt", "p.txt has no prompts"),
        (b"\xff", "p.txt", "p.txt is not UTF-8"),
        (b"[" * 100_000, "p.jsonl", "p.jsonl line 1 is not JSON"),
    ],
)
def test_a_file_of_prompts_that_cannot_be_read_is_refused_with_its_line(
    content: bytes, name: str, sentence: str
) -> None:
    with pytest.raises(RequestError, match=re.escape(sentence)):
        read_prompts(content, name)


PUZZLES = [SUDOKU, "C1 2 3=6", "S1234341221434321", "C4 5 6=15", "C2 7=9"]


@pytest.mark.parametrize("name", ["llada-tiny", "sdar-tiny"])
def test_an_answer_does_not_depend_on_what_else_was_asked(name: str) -> None:
    prompts, config = given_prompts(PUZZLES), policy(name).configure({"temperature": 1.0})

    def told(chosen: list[Prompt], batch: int) -> dict[str, tuple[str, int]]:
        encoded = encode(policy(name), chosen, config)
        made = answers(policy(name), chosen, encoded, config, 3, batch, True)
        return {one.id: (one.line(), one.nfe) for batch, _ in made for one in batch}

    together = told(prompts, 5)
    assert told(prompts[::-1], 2) == together
    for prompt in prompts:
        assert told([prompt], 1)[prompt.id] == together[prompt.id]


def test_an_answers_file_continues_where_it_was_cut(tmp_path: Path) -> None:
    source, whole, cut = tmp_path / "p.jsonl", tmp_path / "whole.jsonl", tmp_path / "cut.jsonl"
    source.write_text("".join(json.dumps({"id": f"q{n}", "prompt": text}) + "\n" for n, text in enumerate(PUZZLES)))
    common = ["--file", str(source), "--temperature", "1", "--batch", "2", "--json"]
    done = run(*common, "--out", str(whole))
    assert done.exit_code == 0, done.output
    assert "5 answers." in done.output
    lines = whole.read_bytes().splitlines(keepends=True)
    assert [json.loads(line)["id"] for line in lines] == [f"q{n}" for n in range(5)]
    cut.write_bytes(b"".join(lines[:2]) + lines[2][:30])
    again = run(*common, "--out", str(cut))
    assert again.exit_code == 0, again.output
    assert "2 of them from before" in again.output
    assert cut.read_bytes() == whole.read_bytes()
    unchanged = run(*common, "--out", str(cut))
    assert unchanged.exit_code == 0
    assert cut.read_bytes() == whole.read_bytes()
    first = json.loads(lines[0])
    assert len(first["ids"]) == len(first["step_map"]) == 20
    assert "another backbone, settings or seed" in refusal(*common, "--out", str(cut), "--seed", "1")
    source.write_text(json.dumps({"id": "q0", "prompt": "C1 2=3"}))
    assert "answers another prompt under the id 'q0'" in refusal(*common, "--out", str(cut))
    cut.write_text("{}\n")
    assert "line 1 is no answer: id is missing" in refusal(*common, "--out", str(cut))
    cut.write_bytes(b"\xff\n")
    assert "line 1 is no answer" in refusal(*common, "--out", str(cut))


def test_two_writers_of_one_file_are_refused(tmp_path: Path) -> None:
    name = decoding_name(policy(), policy().sampling, 0)
    with AnswersFile(tmp_path / "a.jsonl", name), pytest.raises(RequestError, match="another `dare generate`"):
        AnswersFile(tmp_path / "a.jsonl", name)


def test_a_dialogue_is_answered_and_a_begun_answer_continued() -> None:
    turns = [{"role": "user", "content": SUDOKU}, {"role": "assistant", "content": "4"}]
    done = run("--file", "-", "--json", stdin=json.dumps({"messages": turns}))
    assert done.exit_code == 0, done.output
    answer = json.loads(done.stdout)
    assert policy().prompt(turns) == [*policy().prompt(SUDOKU), *policy().text("4")]
    expected = policy().backbone.sample([policy().prompt(turns)], policy().sampling, [generator_for(0, "any")])
    assert answer["ids"] == expected.ids[0][expected.window[0]].tolist()
    assert answer["nfe"] == int(expected.nfe[0])
    assert answer["truncated"] is bool(expected.truncated[0])


def test_piped_answers_are_plain_lines_and_hostile_ones_harmless() -> None:
    done = run(SUDOKU, "--backbone", "sdar-tiny")
    assert done.exit_code == 0, done.output
    assert re.fullmatch(r"\d+\n", done.stdout)
    assert done.stderr == ""


@pytest.mark.parametrize("name", ["llada-tiny", "sdar-tiny"])
def test_a_checkpoint_folder_answers_like_the_catalog(name: str, tmp_path: Path) -> None:
    policy(name).backbone.save(tmp_path / "saved")  # without a record: config.json says the family
    config = ["--gen-length", "20", "--set", f"block_length={policy(name).sampling.block_length}"]
    named = run(SUDOKU, "--backbone", name)
    for words in (
        ["--backbone", str(backbone_directory(name))],
        ["--backbone", name, "--weights", str(tmp_path / "saved")],
        ["--backbone", str(tmp_path / "saved"), *config],
    ):
        done = run(SUDOKU, *words)
        assert done.exit_code == 0, done.output
        assert done.stdout == named.stdout


def test_settings_that_were_equal_stay_equal_and_parameters_choose_their_selector() -> None:
    whole = policy("llada-tiny").configure({"gen_length": 48})
    assert (whole.block_length, whole.steps_per_block) == (48, 48)
    halved = policy("llada-tiny").configure({"gen_length": 48, "block_length": 16})
    assert (halved.block_length, halved.steps_per_block) == (16, 16)
    few = policy("llada-tiny").configure({"gen_length": 48, "steps_per_block": 6})
    assert (few.block_length, few.steps_per_block) == (48, 6)
    block = policy("sdar-tiny").configure({"gen_length": 48})
    assert (block.block_length, block.steps_per_block) == (4, 4)
    assert policy("sdar-tiny").configure({"threshold": 0.9}).selector == "dynamic"


@pytest.mark.full
@pytest.mark.parametrize("name", ["llada-tiny", "sdar-tiny"])
def test_every_preset_is_decoded_or_refused_in_a_sentence(name: str) -> None:
    fitting = set()
    for preset in PRESETS:
        done = run(SUDOKU, "--backbone", name, "--preset", preset, "--gen-length", "32", "--json")
        assert done.exit_code in (0, 2), done.output
        assert "Traceback" not in done.output
        if done.exit_code == 0:
            fitting.add(preset)
            assert len(json.loads(done.stdout)["ids"]) == 32
    expected = {"llada-tiny": {"llada", "fast_dllm_dual", "ass", "dream"}, "sdar-tiny": {"sdar_dynamic", "sdar_static"}}
    assert expected[name] <= fitting


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ([], "there is no prompt"),
        (["S1", "--file", "x"], "not both"),
        (["--file", "{tmp}/none.txt"], "none.txt cannot be read: No such file or directory"),
        (["--file", "{tmp}"], "cannot be read: Is a directory"),
        (["S1", "--backbone", "gpt"], "unknown backbone 'gpt', and there is no such folder; known: "),
        (["S1", "--backbone", "{tmp}"], "has no config.json, so it is no checkpoint"),
        (["S1", "--weights", "{tmp}/none"], "there is no folder of weights"),
        (["S1", "--weights", "{tmp}"], "cannot be loaded"),
        (["S1", "1é"], "prompt 2: the tokenizer has no token for 'é'"),
        (["1" * 120], "together more than the 128 positions of llada-tiny"),
        (["S1", "--gen-length", "0"], "gen_length is 0: Input should be greater than 0"),
        (["S1", "--gen-length", "20", "--set", "block_length=8"], "no multiple of block_length 8"),
        (["S1", "--steps", "21"], "steps_per_block is 21 but a block has 20 tokens"),
        (["S1", "--preset", "lada"], "there is no preset 'lada'. Did you mean `llada`?"),
        (["S1", "--preset", "ass", "--set", "gen_length=x"], "gen_length is 'x'; it must be a whole number from 1"),
        (["S1", "--set", "threshold=2"], "threshold is 2: Input should be less than or equal to 1"),
        (["S1", "--set", "thresholds=0.9"], "there is no setting 'thresholds'. Did you mean `threshold`?"),
        (["S1", "--set", "threshold"], "not of the form name=value"),
        (["S1", "--set", "threshold=["], "the value cannot be read"),
        (["S1", "--set", "top_p=0.5"], "temperature is 0"),
        (["S1", "--temperature", "nan"], "temperature is nan: Input should be a finite number"),
        (["S1", "--backbone", "sdar-tiny", "--set", "block_length=8"], "the blocks of sdar-tiny have 4"),
        (["S1", "--batch", "0"], "--batch is 0; it must be at least 1"),
        (["S1", "--delay", "-1"], "--delay is -1.0; it must be at least 0"),
        (["S1", "--delay", "nan"], "--delay is nan; it must be at least 0"),
        (["S1", "--device", "quantum"], "device 'quantum' cannot be used here"),
        (["S1", "--out", "{tmp}/none/a.jsonl"], "cannot be written: No such file or directory"),
        (["S1", "--frames", "{tmp}/none/a.txt"], "cannot be written: No such file or directory"),
        (["S1", "S2", "--frames", "{tmp}/a.txt"], "--frames records the canvas of a single prompt"),
        (["S1", "--backbone", "\x1b[2J[/red]"], "unknown backbone '\\x1b[2J[/red]'"),
    ],
)
def test_what_cannot_be_answered_gets_one_sentence(words: list[str], sentence: str, tmp_path: Path) -> None:
    assert sentence in refusal(*[word.format(tmp=tmp_path) for word in words])


def test_a_broken_checkpoint_is_named(tmp_path: Path) -> None:
    for name, content in (("config.json", "{"), ("config.json", "[]"), ("config.json", '{"architectures": ["GPT2"]}')):
        (tmp_path / name).write_text(content)
        assert "config.json" in refusal("S1", "--backbone", str(tmp_path))
    (tmp_path / "backbone.json").write_text("{}")
    assert "backbone.json cannot be read" in refusal("S1", "--backbone", str(tmp_path))
