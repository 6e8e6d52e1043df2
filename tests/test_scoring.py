"""Scoring stored answers: what a broken scorer, a torn file or a lost gold may do to a number, which is nothing."""

from __future__ import annotations

import hashlib
import json
import math
import re
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dare.scoring
from dare.data_record import NAME, DataRecord, FileRecord
from dare.sampling_config import SamplingConfig
from dare.scoring import (
    MASKS,
    EvaluationError,
    ScoringError,
    check_golds,
    cut,
    judge,
    prompt_sha256,
    read_predictions,
    summarise,
    task_items,
    write_items,
)
from dare.spec import ItemOutcome, ItemStatus, Prediction, Score, TaskProtocol
from dare.tasks import Item, MissingDataError, NotScoredError, Task, Verdict, load_task

ANSWERS = 200
ONE_PERCENT = 2
"""Of `ANSWERS`."""


def protocol(task: str = "countdown", **given: object) -> TaskProtocol:
    sampling = SamplingConfig(gen_length=32, block_length=32, steps_per_block=32)
    fields = {"task": task, "task_version": load_task(task).version, "sampling": sampling} | given
    return TaskProtocol.model_validate(fields)


def prediction(item: str, output: str, sample: int = 0, **given: object) -> Prediction:
    fields = {"prompt_sha256": "p", "tokens": 3, "nfe": 3, "truncated": False} | given
    return Prediction.model_validate({"item": item, "sample": sample, "output": output} | fields)


ITEMS = [Item(f"i{number:03}", f"{number}?", {"answer": str(number)}) for number in range(ANSWERS)]
RIGHT = {(item.id, 0): prediction(item.id, item.gold["answer"]) for item in ITEMS}


def task_with(what: Callable[[Item, str], Verdict], **given: object) -> Task:
    """A task whose answer is the item's number, judged by something worse."""
    shown = (ITEMS[0], "0")
    base = replace(load_task("countdown"), name="numbers", example=shown, judge=what, judge_under=None, policies={})
    return replace(base, **given)  # type: ignore[arg-type]


def exact(item: Item, text: str) -> Verdict:
    solved = text.strip() == item.gold["answer"]
    return Verdict(solved, float(solved), "ok", text) if text.strip() else Verdict(False, 0.0, "no_answer", None)


def broken_on(numbers: Sequence[int], fault: Callable[[], object]) -> Callable[[Item, str], Verdict]:
    """`exact`, but for the items with these numbers."""

    def judge_or_not(item: Item, text: str) -> Verdict:
        if int(item.gold["answer"]) in numbers:
            fault()
        return exact(item, text)

    return judge_or_not


def raises() -> None:
    raise ZeroDivisionError("of the scorer")


def loops() -> None:
    while True:
        pass


def backtracks() -> None:
    re.match(r"(a|aa)+$", "a" * 200 + "b")


def recurses() -> None:
    recurses()


def test_a_scorer_that_raises_on_an_answer_has_no_number_there_and_says_why(caplog: pytest.LogCaptureFixture) -> None:
    outcomes = judge(protocol(), task_with(broken_on([7], raises)), ITEMS, RIGHT)
    assert [outcome.item for outcome in outcomes] == [item.id for item in ITEMS]
    assert (outcomes[7].status, outcomes[7].score, outcomes[7].reward, outcomes[7].answer) == ("error", 0, 0, None)
    solved, _ = summarise(protocol(), outcomes)
    assert (solved.value, solved.n, solved.n_error) == (1.0, ANSWERS - 1, 1)
    assert "failed on item 'i007'" in caplog.text
    assert "ZeroDivisionError: of the scorer" in caplog.text


@pytest.mark.parametrize("fault", [loops, backtracks])
def test_a_scorer_that_hangs_is_stopped_and_goes_on_with_the_next_answer(
    fault: Callable[[], object], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dare.scoring, "SECONDS", 0.05)
    outcomes = judge(protocol(), task_with(broken_on([3, 150], fault)), ITEMS, RIGHT)
    assert [outcome.item for outcome in outcomes if outcome.status == "error"] == ["i003", "i150"]
    assert sum(outcome.score for outcome in outcomes) == ANSWERS - 2


def test_recursion_without_end_is_an_error_of_that_answer() -> None:
    outcomes = judge(protocol(), task_with(broken_on([3], recurses)), ITEMS, RIGHT)
    assert [outcome.status for outcome in outcomes].count("error") == 1


def test_no_timer_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    before = signal.getsignal(signal.SIGVTALRM)
    monkeypatch.setattr(dare.scoring, "SECONDS", 0.05)
    judge(protocol(), task_with(broken_on([0], loops)), ITEMS, RIGHT)
    assert signal.getitimer(signal.ITIMER_VIRTUAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGVTALRM) == before


def test_a_thread_scores_as_the_main_one_does() -> None:
    found: list[ItemOutcome] = []
    thread = threading.Thread(
        target=lambda: found.extend(judge(protocol(), task_with(broken_on([7], raises)), ITEMS, RIGHT))
    )
    thread.start()
    thread.join()
    assert found == judge(protocol(), task_with(broken_on([7], raises)), ITEMS, RIGHT)


@pytest.mark.parametrize(("failing", "fails"), [(ONE_PERCENT, False), (ONE_PERCENT + 1, True)])
def test_more_than_one_error_in_a_hundred_is_no_score_at_all(failing: int, fails: bool) -> None:
    task = task_with(broken_on(range(failing), raises))
    if not fails:
        assert sum(outcome.status == "error" for outcome in judge(protocol(), task, ITEMS, RIGHT)) == failing
        return
    with pytest.raises(ScoringError, match=r"numbers failed on 3 of 200 answers.* item 'i000': ZeroDivisionError: of"):
        judge(protocol(), task, ITEMS, RIGHT)


def test_a_scorer_that_fails_everywhere_is_not_asked_to_the_end() -> None:
    asked = []

    def failing(item: Item, _text: str) -> Verdict:
        asked.append(item.id)
        raise OSError("no disk")

    with pytest.raises(ScoringError):
        judge(protocol(), task_with(failing), ITEMS, RIGHT)
    assert len(asked) == ONE_PERCENT + 1


@pytest.mark.parametrize("reward", [-0.1, 1.5, math.inf, math.nan])
def test_a_reward_that_is_none_is_an_error_of_the_scorer(reward: float) -> None:
    def strange(item: Item, text: str) -> Verdict:
        verdict = exact(item, text)
        return replace(verdict, reward=reward) if item.id == "i005" else verdict

    outcomes = judge(protocol(), task_with(strange), ITEMS, RIGHT)
    assert [(o.item, o.reward) for o in outcomes if o.status == "error"] == [("i005", 0.0)]


def test_a_machine_that_cannot_score_is_no_error_of_the_scorer() -> None:
    def impossible(_item: Item, _text: str) -> Verdict:
        raise NotScoredError("there is no sandbox")

    def impossible_for_all(_answers: Sequence[tuple[Item, str]], _policies: Mapping[str, str]) -> Sequence[Verdict]:
        raise NotScoredError("there is no sandbox")

    for task in (task_with(impossible), task_with(exact, judge_all=impossible_for_all)):
        with pytest.raises(NotScoredError, match="there is no sandbox"):
            judge(protocol(), task, ITEMS, RIGHT)


def test_a_batch_that_raises_is_asked_again_one_by_one() -> None:
    def batch(_answers: Sequence[tuple[Item, str]], _policies: Mapping[str, str]) -> Sequence[Verdict]:
        raise ValueError("somewhere in the batch")

    outcomes = judge(protocol(), task_with(broken_on([9], raises), judge_all=batch), ITEMS, RIGHT)
    assert [outcome.item for outcome in outcomes if outcome.status == "error"] == ["i009"]
    assert sum(outcome.score for outcome in outcomes) == ANSWERS - 1


@pytest.mark.parametrize(("failing", "fails"), [(ONE_PERCENT, False), (ONE_PERCENT + 1, True)])
def test_errors_that_a_batch_reports_are_counted_too(failing: int, fails: bool) -> None:
    def batch(answers: Sequence[tuple[Item, str]], _policies: Mapping[str, str]) -> Sequence[Verdict]:
        broken = Verdict(False, 0.0, "error", None)
        return [broken if place < failing else exact(*pair) for place, pair in enumerate(answers)]

    task = task_with(exact, judge_all=batch)
    if fails:
        with pytest.raises(ScoringError, match="failed on 3 of 200 answers"):
            judge(protocol(), task, ITEMS, RIGHT)
    else:
        assert sum(outcome.status == "error" for outcome in judge(protocol(), task, ITEMS, RIGHT)) == failing


def status_of(output: str, truncated: bool = False, stops: tuple[str, ...] = ()) -> tuple[ItemStatus, float, float]:
    known = {("i001", 0): prediction("i001", output, truncated=truncated)}
    (outcome,) = judge(protocol(stops=stops), task_with(exact), ITEMS, known)
    return outcome.status, outcome.score, outcome.reward


def test_an_answer_with_mask_tokens_is_a_failure_of_the_decoder() -> None:
    for mask in MASKS:
        assert status_of(f"1{mask}") == ("undecoded", 0, 0)
        assert status_of(f"1\nUser:{mask}", stops=("\nUser:",)) == ("undecoded", 0, 0)
    assert status_of("1") == ("ok", 1, 1)
    assert status_of("1", truncated=True) == ("truncated", 1, 1)
    assert status_of("", truncated=True) == ("no_answer", 0, 0)


def test_an_answer_ends_before_a_stop() -> None:
    assert status_of("1\nUser: 2") == ("ok", 0, 0)
    assert status_of("1\nUser: 2", stops=("\nUser:", "2")) == ("ok", 1, 1)
    assert status_of("1\nUser: 2", stops=("1",)) == ("no_answer", 0, 0)


@given(text=st.text("ab\n#", max_size=30), stops=st.lists(st.text("ab\n#", min_size=1, max_size=3), max_size=3))
def test_a_cut_text_is_the_longest_beginning_without_a_stop(text: str, stops: list[str]) -> None:
    left = cut(text, stops)
    assert text.startswith(left)
    assert not any(stop in left for stop in stops)
    longer = [text[:end] for end in range(len(left) + 1, len(text) + 1)]
    assert all(any(text.startswith(stop, len(left)) for stop in stops) for _ in longer[:1])


STATUSES: tuple[ItemStatus, ...] = ("ok", "no_answer", "truncated", "undecoded", "error")


@given(
    rows=st.lists(
        st.tuples(st.integers(0, 5), st.integers(0, 2), st.floats(0, 1), st.sampled_from(STATUSES)),
        unique_by=lambda row: row[:2],
        max_size=18,
    )
)
def test_a_score_is_the_mean_over_items_of_what_was_scored(rows: list[tuple[int, int, float, ItemStatus]]) -> None:
    outcomes = [
        ItemOutcome(item=str(i), sample=s, score=round(r), reward=r, status=status, answer=None, scorer="dare-1")
        for i, s, r, status in rows
    ]
    scores = {(score.decoding, score.metric): score for score in summarise(protocol(), outcomes)}
    for decoding, chosen in (("greedy", [r for r in rows if r[1] == 0]), ("sampled", [r for r in rows if r[1] > 0])):
        good = [row for row in chosen if row[3] != "error"]
        if not good:
            assert (decoding, "reward") not in scores
            continue
        means = [fmean(r[2] for r in good if r[0] == item) for item in {r[0] for r in good}]
        score = scores[decoding, "reward"]
        assert score.value == pytest.approx(fmean(means))
        assert (score.n, score.n_error) == (len(means), len(chosen) - len(good))
        assert counted(score) == [sum(r[3] == name for r in good) for name in ("no_answer", "truncated", "undecoded")]
        expected = stdev(means) / len(means) ** 0.5 if len(means) > 1 else None
        assert score.standard_error == (None if expected is None else pytest.approx(expected, abs=1e-9))


def counted(score: Score) -> list[int]:
    return [score.n_no_answer, score.n_truncated, score.n_undecoded]


def stored(path: Path, lines: Sequence[bytes]) -> dict[tuple[str, int], Prediction]:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(lines))
    return read_predictions(path, {f"i{number}": "p" for number in range(9)})


def line(item: str, output: str, **given: object) -> bytes:
    return prediction(item, output, **given).model_dump_json().encode()  # type: ignore[arg-type]


def test_what_cannot_be_read_is_generated_again_and_nothing_else_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "predictions" / "numbers.jsonl"
    known = stored(
        path,
        [
            line("i1", "one\u2028line\x85of\x0b\x0cmany\r\nends"),
            line("i2", "torn")[:-9],
            line("i3", "three").replace(b"three", b"\xff\xfe"),
            b"\x00" * 50,
            b'{"item": "i4"}',
            b'"just a text"',
            b"[" * 5_000,
            line("i5", "of another prompt", prompt_sha256="q"),
            line("unknown", "6"),
            line("i7", "first"),
            line("i7", "a sample", sample=1),
            line("i7", "again"),
            line("i8", "cut by a kill")[:20],
        ],
    )
    assert {place: prediction.output for place, prediction in known.items()} == {
        ("i1", 0): "one\u2028line\x85of\x0b\x0cmany\r\nends",
        ("i7", 0): "again",
        ("i7", 1): "a sample",
    }
    again = [json.loads(text) for text in path.read_bytes().splitlines()]
    assert [(one["item"], one["sample"]) for one in again] == [("i1", 0), ("i7", 0), ("i7", 1)]
    assert read_predictions(path, {"i1": "p", "i7": "p"}) == known


def test_no_file_is_no_answers(tmp_path: Path) -> None:
    assert read_predictions(tmp_path / "predictions" / "none.jsonl", {"i1": "p"}) == {}


@given(output=st.text() | st.text("\r\n\x00\x85\u2028\ufeff\ud800\udc00\U0010ffff"))
def test_any_text_that_can_be_stored_comes_back_as_it_was(output: str) -> None:
    kept = prediction("i1", output)
    assert Prediction.model_validate_json(kept.model_dump_json()) == kept


def test_half_of_a_character_is_stored_as_a_sign_for_none() -> None:
    assert prediction("i1", "half of an emoji: \ud83d!").output == "half of an emoji: \ufffd!"
    assert prediction("i1", "two halves: \ud83d\ude00").output == "two halves: \U0001f600"
    assert json.loads(line("i1", "\udfff"))["output"] == "\ufffd"


def test_items_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    path = tmp_path / "items" / "numbers.jsonl"
    outcomes = judge(protocol(), task_with(exact), ITEMS, RIGHT)
    write_items(path, outcomes)
    assert [ItemOutcome.model_validate_json(text) for text in path.read_text().splitlines()] == outcomes
    assert [file.name for file in path.parent.iterdir()] == ["numbers.jsonl"]


def test_a_changed_prompt_is_another_prompt() -> None:
    assert prompt_sha256("a") != prompt_sha256("b")
    assert prompt_sha256(({"role": "user", "content": "a"},)) == prompt_sha256("a")


@pytest.mark.parametrize("gold", [None, "", " \n", [], {}, math.nan, "None", "nan "])
def test_an_item_without_a_gold_is_refused_by_name(gold: object) -> None:
    lost = [*ITEMS[:3], Item("i-lost", "?", {"answer": gold}), *ITEMS[3:]]
    with pytest.raises(EvaluationError, match="item 'i-lost' of numbers has no gold: answer is"):
        check_golds(task_with(exact), lost)
    with pytest.raises(EvaluationError, match="item 'i-lost' of numbers has no gold: answer is None"):
        check_golds(task_with(exact), [Item("i-lost", "?", {"other": 1})])
    check_golds(task_with(exact), [*ITEMS, Item("zero", "?", {"answer": 0})])


ROWS = [json.dumps({"origin_prompt": f"{number}?", "gold_answer": number}) for number in range(3)]


def declared(folder: Path, rows: Sequence[str]) -> Path:
    """A data folder whose file of AIME 2024 was put there by hand, and recorded."""
    content = "\n".join(rows).encode()
    (folder / "aime.jsonl").write_bytes(content)
    record = FileRecord(
        sha256=hashlib.sha256(content).hexdigest(),
        bytes=len(content),
        rows=len(rows),
        address=None,
        revision=None,
        date="2026-12-01T00:00:00Z",
    )
    (folder / NAME).write_text(DataRecord(files={"aime.jsonl": record}).model_dump_json())
    return folder


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ('{"origin_prompt": "?", "gold_answer": null}', "item 'row-03' of aime24 has no gold: answer is 'None'"),
        ('{"origin_prompt": "?", "gold_answer": " "}', "item 'row-03' of aime24 has no gold: answer is ' '"),
        ('{"origin_prompt": "?"}', "the rows of aime24 cannot be read: KeyError: 'gold_answer'"),
        ('{"origin_prompt": null, "gold_answer": 3}', "the rows of aime24 cannot be read: AttributeError"),
        ('["?", 3]', "the rows of aime24 cannot be read: TypeError"),
    ],
)
def test_a_row_without_a_gold_or_a_form_ends_before_anything_is_asked(row: str, sentence: str, tmp_path: Path) -> None:
    assert len(task_items(protocol("aime24"), declared(tmp_path, ROWS))[1]) == 3
    with pytest.raises(EvaluationError, match=re.escape(sentence)):
        task_items(protocol("aime24"), declared(tmp_path, [*ROWS, row]))


def test_a_row_that_is_no_json_is_named_by_its_line(tmp_path: Path) -> None:
    with pytest.raises(MissingDataError, match=r"aime\.jsonl of task 'aime24', line 4: "):
        task_items(protocol("aime24"), declared(tmp_path, [*ROWS, '{"origin_prompt": "?", ']))


def test_items_that_are_not_those_of_the_protocol_are_refused() -> None:
    with pytest.raises(EvaluationError, match=r"the items of countdown hash to [0-9a-f]{12}, not 0{12}"):
        task_items(protocol(items_sha256="0" * 64), None)


@pytest.mark.shared
@pytest.mark.parametrize("change", ["reordered", "edited", "cut"])
def test_a_data_file_that_is_not_the_published_one_is_refused_by_name(
    change: str, shared: Path, tmp_path: Path
) -> None:
    lines = (shared / "data/gsm8k/test.jsonl").read_bytes().splitlines(keepends=True)
    changed = {
        "reordered": [lines[1], lines[0], *lines[2:]],
        "edited": [lines[0].replace(b"#### 18", b"#### 19"), *lines[1:]],
        "cut": lines[:-1],
    }
    (tmp_path / "gsm8k").mkdir()
    (tmp_path / "gsm8k/test.jsonl").write_bytes(b"".join(changed[change]))
    with pytest.raises(MissingDataError, match=r"gsm8k/test\.jsonl is not the file that task 'gsm8k' needs"):
        task_items(protocol("gsm8k"), tmp_path)
