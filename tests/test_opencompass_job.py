"""What the OpenCompass child is told and leaves behind, how it asks, joins and reads verdicts. No opencompass here."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from replaying import Replay, replaying

from dare.opencompass import job as jobs
from dare.opencompass.alignment import MismatchError, align
from dare.opencompass.asking import Endpoint, EndpointError, Question, Reply, ask_all
from dare.opencompass.configs import CONFIGS, UnknownConfigError, stock_config
from dare.opencompass.job import ChildEndedError, ChildJob, Done, OpenCompassError
from dare.opencompass.prompts import as_dialogue, splits
from dare.opencompass.verdicts import EvaluatorError, read_result
from dare.sampling_config import SamplingConfig
from dare.spec import TaskProtocol
from dare.tasks import Item

WORDS = st.text("ab \n", min_size=1, max_size=8)


def protocol(task: str = "countdown", prompt: str = "task", **more: object) -> TaskProtocol:
    sampling = SamplingConfig(gen_length=8, block_length=8, steps_per_block=8)
    return TaskProtocol.model_validate(
        {"task": task, "task_version": "1", "sampling": sampling, "prompt": prompt, **more}
    )


def job(folder: Path, *protocols: TaskProtocol, **more: object) -> ChildJob:
    return ChildJob.model_validate(
        {
            "directory": str(folder),
            "url": "http://127.0.0.1:1",
            "model": "m",
            "protocols": protocols or (protocol(),),
            **more,
        }
    )


def test_a_job_reads_as_it_was_written(tmp_path: Path) -> None:
    written = job(tmp_path, protocol("gsm8k", "opencompass:gsm8k/gsm8k_gen"))
    assert ChildJob.model_validate_json(jobs.write_job(written).read_text()) == written


@pytest.mark.parametrize(
    ("more", "says"),
    [
        ({"url": "http://192.0.2.1:80"}, "url"),
        ({"url": "https://127.0.0.1:80"}, "url"),
        ({"url": None}, "no url and model"),
        ({"directory": "here"}, "directory"),
        ({"code": "import os"}, "Extra inputs"),
        ({"protocols": (protocol(), protocol())}, "asked under two protocols"),
        ({"protocols": (protocol(prompt="opencompass:os/system"),)}, "unknown configuration of OpenCompass"),
        (
            {"protocols": (protocol(prompt="opencompass:gsm8k/gsm8k_gen"),)},
            "does not ask the items of task 'countdown'",
        ),
    ],
)
def test_a_job_that_cannot_be_done_is_refused(tmp_path: Path, more: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        job(tmp_path, **more)


def test_scoring_alone_needs_no_server(tmp_path: Path) -> None:
    assert job(tmp_path, url=None, model=None, phases=("score",)).url is None


def test_the_allow_list_names_no_code_and_no_path_outside_the_data() -> None:
    for name, stock in CONFIGS.items():
        assert stock_config(name) is stock
        assert stock.name == name
        for place in (name, stock.path, *(str(change.get("path", "")) for change in stock.tasks.values())):
            assert not place.startswith("/")
            assert ".." not in place
    with pytest.raises(UnknownConfigError, match="known: gsm8k/gsm8k_gen, "):
        stock_config("gsm8k/../gsm8k/gsm8k_gen")


def test_the_child_gets_none_of_our_secrets() -> None:
    given = {"PATH": "/bin", "DARE_DATABASE_URL": "postgresql://", "http_proxy": "http://proxy", "HF_TOKEN": "t"}
    assert jobs.environment("k", given) == {"PATH": "/bin", "DARE_API_KEY": "k", **jobs.OFFLINE}
    assert "DARE_API_KEY" not in jobs.environment(None, given)


def test_the_key_is_shown_nowhere(tmp_path: Path) -> None:
    assert "secret" not in repr(Endpoint("http://127.0.0.1:1", "secret"))
    assert "key" not in ChildJob.model_fields


def test_the_parent_trusts_the_last_word_only(tmp_path: Path) -> None:
    mine, other = job(tmp_path), job(tmp_path, seed=1)
    path = jobs.child_folder(tmp_path) / "done.json"
    with pytest.raises(ChildEndedError, match="without a result"):
        jobs.read_done(mine)
    jobs.write_job(mine)
    for content, says in (
        ("{", "is no result"),
        (Done(job=other.digest(), outcome="succeeded").model_dump_json(), "answers job"),
        (Done(job=mine.digest(), outcome="failed", cause="endpoint", message="it is gone").model_dump_json(), "gone"),
    ):
        path.write_text(content)
        with pytest.raises(OpenCompassError, match=says):
            jobs.read_done(mine)
    path.write_text(Done(job=mine.digest(), outcome="succeeded").model_dump_json())
    assert jobs.read_done(mine).outcome == "succeeded"
    jobs.write_job(mine)
    assert not path.exists(), "the last word of an earlier start is no word on this one"


def test_the_parents_half_imports_neither_opencompass_nor_torch() -> None:
    names = "dare.opencompass.job, dare.opencompass.verdicts, dare.opencompass.alignment, dare.opencompass.asking"
    code = f"import sys, {names}; print(sorted({{'opencompass', 'torch', 'datasets'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Asking


def questions(count: int) -> list[Question]:
    return [Question(f"item {n}", "/v1/completions", {"prompt": f"{n}"}) for n in range(count)]


def asked(replay: Replay, count: int = 1, in_flight: int = 4, **more: object) -> list[Reply]:
    with replaying(replay):
        return list(ask_all(Endpoint(replay.url, "k", **more), questions(count), in_flight))  # type: ignore[arg-type]


def test_every_question_is_answered_once_and_many_are_in_flight() -> None:
    replay = Replay(lambda prompt: f"<{prompt}>")
    replies = asked(replay, 40, 8)
    told = {reply.question.body["prompt"]: reply.payload["choices"][0]["text"] for reply in replies}
    assert told == {f"{n}": f"<{n}>" for n in range(40)}
    assert {headers["Authorization"] for headers in replay.headers} == {"Bearer k"}
    assert len(replay.asked) == 40


def test_a_full_queue_is_asked_again() -> None:
    replay = Replay(before=lambda number: (429, "the queue is full") if number <= 2 else None)
    [reply] = asked(replay)
    assert reply.attempts == 3


def test_a_queue_that_stays_full_is_not_asked_for_ever() -> None:
    with pytest.raises(EndpointError, match=r"item 0 could not be asked for in 0 s: its queue is full"):
        asked(Replay(before=lambda _: (429, "")), patience_seconds=0.0)


def test_nobody_listening_is_said_with_the_address() -> None:
    endpoint = Endpoint("http://127.0.0.1:9", patience_seconds=0.0)
    with pytest.raises(EndpointError, match=r"nothing listens at http://127.0.0.1:9"):
        list(ask_all(endpoint, questions(3), 2))


@pytest.mark.parametrize(
    ("status", "says"),
    [
        (400, "refused item 0 with status 400: the prompt has 9 tokens"),
        (503, "status 503"),
        (0, "was lost while it answered item 0"),
    ],
)
def test_any_other_failure_ends_the_asking_at_once(status: int, says: str) -> None:
    replay = Replay(before=lambda _: (status, "the prompt has 9 tokens"))
    with pytest.raises(EndpointError, match=says):
        asked(replay, in_flight=1)
    assert len(replay.asked) == 1


def test_an_answer_that_never_comes_is_waited_for_within_a_bound() -> None:
    over = threading.Event()

    def say(_: str) -> str:
        over.wait(5)
        return ""

    with replaying(Replay(say)) as replay:
        endpoint = Endpoint(replay.url, request_seconds=0.05)
        with pytest.raises(EndpointError, match="had no answer for item 0 after 0 s"):
            list(ask_all(endpoint, questions(1), 1))
        over.set()


# Prompts


def test_turns_of_one_role_in_a_row_are_one() -> None:
    turns = [("SYSTEM", "s"), ("HUMAN", "a"), ("HUMAN", "b"), ("BOT", ""), ("BOT", "c"), ("HUMAN", "d")]
    assert as_dialogue([{"role": role, "prompt": text} for role, text in turns]) == (
        {"role": "system", "content": "s"},
        {"role": "user", "content": "a\nb"},
        {"role": "assistant", "content": "c"},
        {"role": "user", "content": "d"},
    )


def test_choices_are_parted_before_the_gap_that_leads_to_them() -> None:
    assert splits(["Q\nAnswer: A", "Q\nAnswer: B"]) == ("Q\nAnswer:", [" A", " B"])
    assert splits(["He runs away", "He rests"]) == ("He", [" runs away", " rests"])
    assert splits(["it is 1", "it is 12"]) == ("it is", [" 1", " 12"])
    assert splits(["yes", "no"]) == ("", ["yes", "no"])


@given(st.text("ab \n", max_size=10), st.lists(WORDS, min_size=2, max_size=4))
def test_context_and_continuation_are_the_text_and_no_continuation_is_empty(begin: str, ends: list[str]) -> None:
    texts = [begin + end for end in ends]
    context, continuations = splits(texts)
    assert [context + one for one in continuations] == texts
    assert all(continuations)


# Whose row is whose


def arc(id: str, question: str, options: list[str], letter: str) -> Item:
    return Item(id, f"{question}?", {"letter": letter, "options": options}, row={"question": question})


def arc_row(question: str, options: list[str], letter: str) -> dict[str, str]:
    return {
        "question": question,
        **dict(zip(("textA", "textB", "textC", "textD"), options, strict=True)),
        "answerKey": letter,
    }


FOUR = ["w", "x", "y", "z"]


def test_an_item_that_opencompass_leaves_out_shifts_nothing() -> None:
    items = [arc("1", "one", FOUR, "A"), arc("2", "two", ["w", "x", "y"], "B"), arc("3", "three", FOUR, "C")]
    rows = [arc_row("one", FOUR, "A"), arc_row("three", FOUR, "C")]
    assert [item.id for item in align("ARC_c", rows, items, drops=True)] == ["1", "3"]
    with pytest.raises(MismatchError, match=r"row 1 of OpenCompass's ARC_c is not item '2': the question differs"):
        align("ARC_c", rows, items)
    with pytest.raises(MismatchError, match="row 0 of OpenCompass's ARC_c is none of 3 items"):
        align("ARC_c", [arc_row("four", FOUR, "A")], items, drops=True)


def test_another_gold_or_other_options_are_a_mismatch_that_names_the_item() -> None:
    items = [arc("1", "one", FOUR, "A")]
    with pytest.raises(MismatchError, match=r"not item '1': the right option differs"):
        align("ARC_c", [arc_row("one", FOUR, "B")], items)
    with pytest.raises(MismatchError, match=r"not item '1': the list of options differs"):
        align("ARC_c", [arc_row("one", ["w", "x", "y", "q"], "A")], items)


def test_options_in_another_order_are_the_same_question() -> None:
    assert align("ARC_c", [arc_row("one", FOUR[::-1], "D")], [arc("1", "one", FOUR, "A")])


def test_a_row_too_few_or_too_many_is_a_mismatch() -> None:
    def item(number: int) -> Item:
        return Item(f"{number}", f"how many {number}?", {"answer": f"{number}"})

    rows = [{"question": f"how many {number}?", "answer": f"so\n#### {number}"} for number in range(3)]
    assert len(align("gsm8k", rows, [item(n) for n in range(3)])) == 3
    with pytest.raises(MismatchError, match="has 2 rows and no item '2'"):
        align("gsm8k", rows[:2], [item(n) for n in range(3)])
    with pytest.raises(MismatchError, match=r"row 2 .* is none of 2 items"):
        align("gsm8k", rows, [item(n) for n in range(2)])
    with pytest.raises(MismatchError, match=r"row 0 .* not item '1'"):
        align("gsm8k", rows[:2], [item(1), item(0)])


def test_every_configuration_has_a_way_to_compare_its_rows() -> None:
    from dare.opencompass.alignment import COMPARE

    assert {stock.benchmark for stock in CONFIGS.values()} <= COMPARE.keys()


# Verdicts


def test_verdicts_are_read_in_every_shape_that_opencompass_writes() -> None:
    lists = [
        {"example_abbr": "gsm8k_test_0", "pred": ["18"], "answer": ["18"], "correct": [True]},
        {"correct": [False]},
    ]
    code = [
        {"task_id": ["H/0"], "is_correct": [True], "completion": ["def"]},
        {"is_correct": [False], "programs": ["x"]},
    ]
    gen = {"type": "GEN", "0": {"predictions": "A", "references": "A"}, "1": {"predictions": "", "references": "B"}}
    ppl = {"type": "PPL", "0": {"predictions": "1", "correct": True}, "1": {"predictions": "2", "correct": False}}
    for metric, details, answers in (
        ("accuracy", lists, ("18", None)),
        ("humaneval_pass@1", code, ("def", "x")),
        ("accuracy", gen, ("A", None)),
        ("accuracy", ppl, ("1", "2")),
    ):
        result = read_result("it", {metric: 50.0, "details": details}, 2)
        result.check("it")
        assert (result.metric, result.complete) == (metric, True)
        assert tuple(one.correct for one in result.judged) == (True, False)
        assert tuple(one.answer for one in result.judged) == answers


def test_a_missing_detail_is_no_verdict_on_anybody() -> None:
    result = read_result("it", {"accuracy": 50.0, "details": [{"correct": [True]}]}, 2)
    assert not result.complete
    assert {one.correct for one in result.judged} == {None}


def test_a_number_that_its_items_do_not_add_up_to_is_refused() -> None:
    result = read_result("it", {"accuracy": 100.0, "details": [{"correct": [True]}, {"correct": [False]}]}, 2)
    with pytest.raises(EvaluatorError, match=r"accuracy of it is 100.0000, but its items say 50.0000"):
        result.check("it")


def test_an_error_no_number_and_a_stranger_are_refused() -> None:
    with pytest.raises(EvaluatorError, match="did not score it: different length"):
        read_result("it", {"error": "different length"}, 1)
    with pytest.raises(EvaluatorError, match="has none of accuracy"):
        read_result("it", {"bleu": 1.0}, 1)
    with pytest.raises(EvaluatorError, match="has 'H/1' in the place of 'H/0'"):
        read_result("it", {"accuracy": 0.0, "details": [{"task_id": ["H/1"], "correct": [False]}]}, 1, ["H/0"])
