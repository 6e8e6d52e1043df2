"""Protocols compose into whole ones, say what was published and what was not, and are looked at before they run."""

from __future__ import annotations

import json
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
from tiny import tiny
from typer.testing import CliRunner

from dare import protocols
from dare.__main__ import app
from dare.catalog import backbones, families
from dare.evaluation import prompt_ids_of
from dare.opencompass.job import UnknownConfigError, config_of
from dare.protocols import Asked, ProtocolError, compose
from dare.protocols.lint import Prompt, Reading, configuration, lint
from dare.sampling_config import SamplingConfig
from dare.scoring import prompt_of, prompt_sha256
from dare.tasks import Item, MissingDataError, load_task, task_names

OWN = {family: SamplingConfig(gen_length=256, block_length=size, steps_per_block=size, temperature=1.0)
       for family, size in {"llada": 32, "dream": 256, "sdar": 4, "llada2": 32}.items()}  # fmt: skip

# What the authors' own files say: protocol, task, family, and some of its values.
PUBLISHED = [
    ("llada", "gsm8k", "llada", "gsm8k/gsm8k_gen", (512, 512, 512, "legacy_eot", 0.0)),
    ("llada", "humaneval", "llada", "humaneval/humaneval_gen_8e312c", (512, 512, 512, "logits_inf", 0.0)),
    ("llada", "mbpp", "llada", "mbpp/mbpp_gen", (256, 256, 256, "legacy_eot", 0.0)),
    ("llada", "mmlu", "llada", "mmlu/mmlu_gen_a484b3", (3, 3, 3, "none", 0.0)),
    ("llada-blocks", "gsm8k", "llada", "gsm8k/gsm8k_gen", (256, 8, 8, "none", 0.0)),
    ("llada-blocks", "math", "llada", "math/math_0shot_gen_11c4b5", (512, 64, 64, "none", 0.0)),
    ("llada-1.5", "math", "llada", "math/math_0shot_gen_11c4b5", (1024, 128, 128, "legacy_eot", 0.0)),
    ("d1", "gsm8k", "llada", "d1", (256, 32, 16, "none", 0.0)),
    ("d1-512", "sudoku_published", "llada", "d1", (512, 32, 16, "none", 0.0)),
    ("dare-paper", "gsm8k", "dream", "gsm8k/gsm8k_gen", (256, 256, 256, "none", 0.2)),
    ("dare-paper", "gsm8k", "sdar", "gsm8k/gsm8k_0shot_v2_gen_17d799", (4096, 4, 4, "none", 0.0)),
    ("dare-paper", "mmlu", "llada2", "mmlu/mmlu_gen_a484b3", (256, 32, 32, "none", 0.0)),
]


def here(name: str) -> list[str]:
    """Tasks of a protocol."""
    return [task for task in protocols.tasks_of(name) if task in task_names()]


def asked(name: str, task: str, family: str = "llada") -> Asked:
    return compose(name, task, family, OWN[family])


@pytest.mark.parametrize(("name", "task", "family", "prompt", "decoding"), PUBLISHED)
def test_published_settings_are_those_of_the_authors_files(
    name: str, task: str, family: str, prompt: str, decoding: tuple[object, ...]
) -> None:
    if task not in task_names():
        pytest.skip(f"there is no task {task} yet")
    protocol = asked(name, task, family).protocol
    made = protocol.sampling
    assert protocol.prompt.removeprefix("opencompass:") == prompt
    said = (made.gen_length, made.block_length, made.steps_per_block, made.eos_policy, made.temperature)
    assert said == decoding


def test_every_protocol_composes_for_every_task_and_family_or_says_why_not() -> None:
    made, told = 0, list[tuple[str, str]]()
    for name in protocols.protocol_names():
        assert protocols.title_of(name)
        assert protocols.source_of(name)
        for task in here(name):
            for family in families():
                try:
                    one = asked(name, task, family)
                except ProtocolError as error:
                    told.append((name, str(error)))
                    continue
                made += 1
                assert one.protocol.task == task
    assert made > 100
    assert all(f"protocol {name!r}" in sentence for name, sentence in told)


def test_a_prompt_that_a_protocol_names_is_one_that_the_task_has_or_that_opencompass_may_be_asked_for() -> None:
    for name in protocols.protocol_names():
        for task in here(name):
            for family in families():
                try:
                    one = asked(name, task, family)
                except ProtocolError:
                    continue
                prompt = one.protocol.prompt
                if not prompt.startswith("opencompass:"):
                    assert prompt == "task" or prompt in one.task.asked, f"{name}, {task}: {prompt}"
                elif find_spec("opencompass") is not None:
                    assert configuration(prompt.partition(":")[2]) is not None, f"{name}, {task}: {prompt}"


def test_no_value_of_a_published_protocol_is_without_a_source() -> None:
    for name in protocols.protocol_names():
        for task in here(name):
            for family in families():
                try:
                    one = asked(name, task, family)
                except ProtocolError:
                    continue
                plain = SamplingConfig(gen_length=1, block_length=1, steps_per_block=1)
                for key, value in one.protocol.sampling:
                    if key != "steps_per_block" and value != getattr(plain, key):
                        assert one.origin.get(f"sampling.{key}"), f"{name}, {task}, {family}: {key}"


def test_equal_rules_have_one_id_whoever_names_them_and_another_length_has_another() -> None:
    assert asked("llada", "mmlu").id == asked("dare-paper", "mmlu").id
    ids = {asked(name, "gsm8k").id for name in ("d1", "d1-128", "d1-512", "llada", "llada-blocks", "dare")}
    assert len(ids) == 6


def test_a_tiny_protocol_is_what_evaluation_has_always_done() -> None:
    own = backbones()["llada-tiny"].sampling
    protocol = compose("tiny", "sudoku", "llada", own).protocol
    assert protocol.sampling == own.model_copy(update={"temperature": 0.0, "steps_per_block": own.block_length})
    assert (protocol.samples, protocol.sample_steps_per_block, protocol.scorers) == (4, 4, ("dare-1",))
    assert protocol.items_sha256 is None


@pytest.mark.parametrize(
    ("name", "task", "family", "sentence"),
    [
        ("lada", "gsm8k", "llada", "there is no protocol 'lada'. Did you mean `llada`?"),
        ("llada", "sudoku", "llada", "says nothing of task 'sudoku'"),
        ("llada", "gsm8k", "sdar", "is for the families llada"),
        ("llada", "gpqa", "llada", "its prompt, gpqa_fewshot_gen, is not in OpenCompass 0.5.4"),
        ("dare-paper", "sudoku_published", "llada", "a wrong answer in tags counts 0.1"),
    ],
)
def test_what_nobody_can_ask_is_refused_in_a_sentence(name: str, task: str, family: str, sentence: str) -> None:
    with pytest.raises(ProtocolError, match=sentence.replace("?", r"\?").replace(".", r"\.")):
        asked(name, task, family)


def test_a_prompt_of_opencompass_does_not_go_through_our_decoder() -> None:
    with pytest.raises(ProtocolError, match="goes through opencompass only"):
        compose("llada", "gsm8k", "llada", OWN["llada"], through="decoder")


def test_an_answer_that_the_protocol_begins_is_continued_and_counts_as_another_prompt() -> None:
    one = asked("d1", "countdown_published")
    question = Item("i", "?", {"numbers": [1, 2, 3], "target": 6})
    begun = prompt_of(one.protocol, one.task, question, None)
    plain = prompt_of(one.protocol.model_copy(update={"prefill": ""}), one.task, question, None)
    assert isinstance(plain, str)
    assert begun == ({"role": "user", "content": plain}, {"role": "assistant", "content": "<reasoning>"})
    assert prompt_sha256(begun) != prompt_sha256(plain)
    assert "shots" not in {finding.name for finding in lint(one, [question], None, None)}


def test_blocks_that_are_not_the_models_are_refused() -> None:
    with pytest.raises(ProtocolError, match="decodes blocks of 4 tokens, and this backbone's have 16"):
        compose("dare-paper", "gsm8k", "sdar", SamplingConfig(gen_length=256, block_length=16, steps_per_block=16))


def test_a_configuration_outside_the_allow_list_is_refused_before_anything_starts() -> None:
    other = asked("llada", "gsm8k").protocol.model_copy(update={"prompt": "opencompass:os/system"})
    with pytest.raises(UnknownConfigError, match="unknown configuration"):
        config_of(other)


# Lint


def reading(characters: int = 1, bos_id: int | None = None, has_template: bool = True) -> Reading:
    start = [] if bos_id is None else [bos_id] * 2
    return Reading(
        prompt_ids=lambda dialogue: [*start, 7],
        text_ids=lambda text: list(range(100, 100 + len(text) // characters)),
        bos_id=bos_id,
        has_template=has_template,
    )


def found(one: Asked, items: list[Item], **how: object) -> set[str]:
    return {finding.name for finding in lint(one, items, None, reading(**how))}  # type: ignore[arg-type]


def item(prompt: object, **gold: object) -> Item:
    return Item("i", prompt, gold)  # type: ignore[arg-type]


def test_a_prompt_that_does_not_state_the_form_is_doubtful() -> None:
    one = asked("dare", "gsm8k")
    assert "format_not_stated" in found(one, [item("How many eggs?", answer="18")])
    assert found(one, [item("How many eggs? Put the answer in \\boxed{}.", answer="18")]) == set()


def test_an_instruct_model_that_is_run_as_a_base_is_doubtful() -> None:
    one = asked("dare", "gsm8k")
    base = replace(one, protocol=one.protocol.model_copy(update={"template": "none"}))
    question = [item("Answer in \\boxed{}", answer="18")]
    assert "instruct_as_base" in found(base, question)
    assert "instruct_as_base" not in found(base, question, has_template=False)
    assert "instruct_as_base" not in found(one, question)


def test_two_beginnings_of_sequence_are_doubtful() -> None:
    question = [item("Answer in \\boxed{}", answer="18")]
    assert "double_bos" in found(asked("dare", "gsm8k"), question, bos_id=3)
    assert "double_bos" not in found(asked("dare", "gsm8k"), question)


@pytest.mark.parametrize("family", ["llada", "dream", "sdar", "llada2"])
def test_a_rendered_prompt_has_one_beginning_at_most(family: str) -> None:
    tokenizer = tiny(family).tokenizer
    bos = getattr(tokenizer, "bos_id", None)
    ids = prompt_ids_of(tokenizer, "S0321003004002100", "chat")
    assert ids.count(bos) <= 1 if bos is not None else True
    assert bos is None or ids[0] == bos
    begun = prompt_ids_of(
        tokenizer, ({"role": "user", "content": "S0"}, {"role": "assistant", "content": "12"}), "chat"
    )
    assert begun == [*prompt_ids_of(tokenizer, "S0", "chat"), *prompt_ids_of(tokenizer, "12", "none")]


def test_a_name_that_promises_other_shots_than_the_prompt_has_is_doubtful() -> None:
    one = asked("dare", "gsm8k")
    shown = [
        {"role": "user", "content": "2+2? Answer in \\boxed{}."},
        {"role": "assistant", "content": "\\boxed{4}"},
        {"role": "user", "content": "3+3?"},
    ]
    task = replace(one.task, asked={f"{n}shot": lambda i, d: i.prompt for n in (0, 1, 4)})

    def under(prompt: str, dialogue: object) -> set[str]:
        protocol = one.protocol.model_copy(update={"prompt": prompt})
        return found(replace(one, task=task, protocol=protocol), [item(dialogue, answer="6")])

    assert "shots" in under("0shot", tuple(shown))
    assert "shots" in under("4shot", tuple(shown))
    assert "shots" in under("task", tuple(shown))
    assert "shots" not in under("1shot", tuple(shown))
    assert "shots" in under("4shot", "3+3? Answer in \\boxed{}.")
    assert "shots" not in under("task", "3+3? Answer in \\boxed{}.")


@pytest.mark.parametrize("stop", ["\nclass", "\n#", "```", "from typing import List", "\n\n"])
def test_a_stop_that_programs_contain_is_doubtful_and_one_that_they_do_not_is_fine(stop: str) -> None:
    one = asked("dare", "gsm8k")
    code = replace(one, task=replace(one.task, name="code", kind="code"))

    def under(*stops: str) -> set[str]:
        return found(
            replace(code, protocol=one.protocol.model_copy(update={"stops": stops})), [item("Write f", code="x")]
        )

    assert "stops_cut" in under(stop)
    assert "stops_cut" not in under("[DONE]", "<|end|>")


def test_a_stop_in_right_answers_and_a_window_without_room_for_them_are_doubtful() -> None:
    one = asked("dare", "gsm8k")
    question = "Answer in \\boxed{}"
    stopped = replace(one, protocol=one.protocol.model_copy(update={"stops": ("7",)}))
    assert "stops_cut" in found(stopped, [item(question, answer="17"), item(question, answer="3")])
    long = [item(question, answer="1" * 600), item(question, answer="3")]
    assert "gold_does_not_fit" in found(one, long)
    assert "gold_does_not_fit" not in found(one, long, characters=2)


def test_tests_that_call_a_function_that_the_prompt_does_not_name_are_doubtful() -> None:
    one = asked("dare", "gsm8k")
    code = replace(one, task=replace(one.task, name="code", kind="code"))
    assert "entry_point" in found(code, [item("Write a sum.", entry_point="add")])
    assert "entry_point" not in found(code, [item("def add(a, b):", entry_point="add")])


def test_a_prompt_that_the_policy_cannot_read_or_that_leaves_no_room_is_named() -> None:
    one = asked("dare", "gsm8k")
    question = [item("Answer in \\boxed{}", answer="3")]

    def refuse(_: object) -> list[int]:
        raise ValueError("no token for 'A'")

    assert "unreadable" in {f.name for f in lint(one, question, None, replace(reading(), prompt_ids=refuse))}
    assert "too_long" in {f.name for f in lint(one, question, None, replace(reading(), context=256))}
    assert "too_long" not in {f.name for f in lint(one, question, None, replace(reading(), context=1024))}


@pytest.mark.skipif(find_spec("opencompass") is None, reason="needs the extra `evaluator`")
def test_opencompasss_own_configurations_are_looked_at_without_importing_it() -> None:
    import sys

    assert lint(asked("llada", "gsm8k"), [], None, None) == []
    drawn = lint(asked("dare-paper", "gsm8k", "dream"), [], None, None)
    assert [finding.name for finding in drawn] == ["drawn"]
    assert configuration("gsm8k/no_such") is None
    shots = {"gsm8k": 4, "mmlu": 5, "mbpp": 3, "humaneval": 0, "olympiad_bench": None}
    for task, count in shots.items():
        assert Prompt.of(asked("dare-paper", task), [], None).shots == count, task
    assert "opencompass" not in sys.modules


# The command


def test_the_command_lists_and_shows_protocols() -> None:
    listed = CliRunner().invoke(app, ["protocol", "list", "--json"])
    assert {row["name"] for row in json.loads(listed.output)} == set(protocols.protocol_names())
    shown = CliRunner().invoke(app, ["protocol", "show", "tiny", "--task", "sudoku", "--json"])
    told = json.loads(shown.output)
    own = backbones()["llada-tiny"].sampling
    assert told["id"] == compose("tiny", "sudoku", "llada", own).id
    assert told["findings"] == []
    text = CliRunner().invoke(app, ["protocol", "show", "tiny", "--task", "sudoku"]).output
    assert f"id: {told['id']}" in text
    for field in told["protocol"]["sampling"]:
        assert f"  {field}: " in text


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["show", "tinny", "--task", "sudoku"], "there is no protocol 'tinny'"),
        (["show", "tiny", "--task", "chess"], "unknown task 'chess'"),
        (["show", "tiny", "--task", "sudoku", "--backbone", "gpt"], "unknown backbone 'gpt'"),
    ],
)
def test_a_protocol_that_is_not_there_gets_one_sentence(words: list[str], sentence: str) -> None:
    done = CliRunner().invoke(app, ["protocol", *words])
    assert done.exit_code == 2
    assert sentence in done.output.replace("\n", " ")


def test_without_data_the_id_says_that_the_items_were_not_looked_at(tmp_path: Path) -> None:
    done = CliRunner().invoke(app, ["protocol", "show", "dare", "--task", "gsm8k", "--data", str(tmp_path), "--json"])
    told = json.loads(done.output)
    assert told["findings"] is None
    assert "gsm8k/test.jsonl" in told["not_looked_at"]
    with pytest.raises(MissingDataError):
        protocols.with_items(asked("dare", "gsm8k"), tmp_path)


@pytest.mark.shared
def test_the_id_changes_with_the_items(shared: Path) -> None:
    one, items = protocols.with_items(asked("dare", "gsm8k"), shared / "data")
    assert len(items) == load_task("gsm8k").count or len(items) == 1319
    assert one.protocol.items_sha256 is not None
    assert one.id != asked("dare", "gsm8k").id
