"""OpenCompass in its child process, against an endpoint that answers from a table: golds, wrong answers, recorded ones.

Importing OpenCompass takes seconds, so that one child serves as many of the tests as it can.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import psutil
import pyarrow
import pytest
from pyarrow import parquet
from replaying import Before, Body, Replay, replaying

from dare.data_record import NAME, DataRecord, FileRecord
from dare.opencompass.job import (
    ChildJob,
    Cost,
    Done,
    Progress,
    child_folder,
    command,
    environment,
    read_done,
    write_job,
)
from dare.rewards import countdown as arithmetic
from dare.rewards import sudoku as rules
from dare.sampling_config import SamplingConfig
from dare.spec import ItemOutcome, Prediction, TaskProtocol
from dare.tasks import Item, load_task, text_of

pytestmark = [pytest.mark.full, pytest.mark.shared]
KEY = "k-only-in-the-environment"
TWO_SUBJECTS = 235
"""Items of the first two subjects of MMLU in our order."""
SCORER = "opencompass-0.5.4"


def protocol(task: str, prompt: str = "task", **more: object) -> TaskProtocol:
    sampling = SamplingConfig(gen_length=16, block_length=8, steps_per_block=8)
    given = {"task": task, "task_version": load_task(task).version, "sampling": sampling, "prompt": prompt, **more}
    return TaskProtocol.model_validate(given)


@dataclass(frozen=True)
class Ended:
    """What a child left behind."""

    job: ChildJob
    code: int
    told: Sequence[Progress]
    errors: str

    @property
    def folder(self) -> Path:
        return Path(self.job.directory)

    @property
    def done(self) -> Done:
        return read_done(self.job)

    def headlines(self) -> dict[str, tuple[float, ...]]:
        return {task.task: task.headlines for task in self.done.tasks}

    def predictions(self, task: str) -> list[Prediction]:
        return [Prediction.model_validate_json(line) for line in lines(self.folder / "predictions" / f"{task}.jsonl")]

    def outcomes(self, task: str) -> list[ItemOutcome]:
        return [
            ItemOutcome.model_validate_json(line)
            for line in lines(child_folder(self.folder) / "items" / f"{task}.jsonl")
        ]


def lines(path: Path) -> list[str]:
    return [line for line in path.read_text(encoding="utf-8").split("\n") if line]


def ended(job: ChildJob) -> Ended:
    """A child that has run to its end."""
    run = subprocess.run(command(write_job(job)), env=environment(KEY), capture_output=True, text=True, check=False)
    told = [Progress.model_validate_json(line) for line in run.stdout.splitlines()]
    return Ended(job, run.returncode, told, run.stderr)


def gold(item: Item, task: str) -> str:
    if task == "countdown":
        return arithmetic.shortest(tuple(item.gold["numbers"]))[item.gold["target"]]
    if task == "sudoku":
        return next(grid for grid in rules.grids() if rules.grade(item.gold["puzzle"], grid).solved)
    return item.gold["letter"] if task == "mmlu" else f"it is {item.gold['answer']}"


def question_of(prompt: str) -> str:
    """What a prompt of OpenCompass asks last, without what it puts around it."""
    prompt = prompt.rpartition("Question: ")[2].removesuffix("\nLet's think step by step\nAnswer:")
    return prompt.rpartition("\nQ: ")[2].removesuffix("\nA: ")


def told_answers(data: Path) -> dict[str, str]:
    """The right answer to every question that the job below asks."""
    found = {text_of(item.prompt): gold(item, name) for name in ("countdown", "sudoku") for item in items(name, data)}
    for line in lines(data / "gsm8k" / "test.jsonl"):
        row = json.loads(line)
        found[row["question"]] = f"it is {row['answer'].rpartition('#### ')[2].replace(',', '')}"
    for item in items("mmlu", data)[:TWO_SUBJECTS]:
        a, b, c, d = item.row["options"]
        found[f"{item.row['question']}\nA. {a}\nB. {b}\nC. {c}\nD. {d}"] = item.gold["letter"]
    return found


def items(task: str, data: Path) -> Sequence[Item]:
    return load_task(task).items("test", data)


PROTOCOLS = (
    protocol("gsm8k", "opencompass:gsm8k/gsm8k_gen_1d7fe4"),
    protocol("mmlu", "opencompass:mmlu/mmlu_gen_a484b3", limit=TWO_SUBJECTS),
    protocol("mmlu_ppl", "opencompass:mmlu/mmlu_ppl", limit=TWO_SUBJECTS, template="none", mc_samples=4),
    protocol("countdown", limit=40),
    protocol("sudoku", limit=40),
)


@pytest.fixture(scope="module")
def data(shared: Path) -> Path:
    return shared / "data"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("opencompass")


def replay_of(data: Path, change: Callable[[str], str] = lambda text: text, before: Before = lambda _: None) -> Replay:
    answers = told_answers(data)

    def rank(context: str, continuation: str) -> float:
        question = re.split(r"\nAnswer: [A-D]\n+", context.removesuffix("\nAnswer:"))[-1]
        return -0.5 if continuation == " " + change(answers[question]) else -3.0

    return Replay(lambda prompt: change(answers[question_of(prompt)]), rank, before)


@dataclass(frozen=True)
class Start:
    """One of several starts of a job: its end, what it asked, and the answers that lay there when it began."""

    child: Ended
    asked: Sequence[tuple[str, Body]]
    stored: dict[str, set[tuple[str, int]]]


def start(job: ChildJob, replay: Replay) -> Start:
    with replaying(replay):
        moved = job.model_copy(update={"url": replay.url})
        stored = {one.task: stored_answers(moved, one.task) for one in job.protocols}
        return Start(ended(moved), tuple(replay.asked), stored)


def stored_answers(job: ChildJob, task: str) -> set[tuple[str, int]]:
    path = Path(job.directory) / "predictions" / f"{task}.jsonl"
    whole = lines(path)[: path.read_text(encoding="utf-8").count("\n")] if path.exists() else []
    return {(one.item, one.sample) for one in map(Prediction.model_validate_json, whole)}


@pytest.fixture(scope="module")
def starts(data: Path, folder: Path) -> Sequence[Start]:
    """Every question answered rightly in three starts: the first is killed after 16 answers, in the second the
    endpoint dies, and the third ends. Before it, one stored answer is given another prompt and one another decoding."""
    job = ChildJob(
        directory=str(folder / "right"), data=str(data), url="http://127.0.0.1:1", model="m", protocols=PROTOCOLS,
        in_flight=4,
    )  # fmt: skip

    def kill(number: int) -> None:
        if number == 17:
            [process] = [one for one in psutil.Process().children() if "dare.opencompass" in one.cmdline()]
            process.kill()

    killed = start(job, replay_of(data, before=kill))
    dying = start(job, replay_of(data, before=lambda number: (0, "") if number >= 1000 else None))
    spoil(folder / "right" / "predictions" / "gsm8k.jsonl", "test-0003", "prompt_sha256")
    spoil(child_folder(folder / "right") / "asked" / "gsm8k.jsonl", "test-0005", "settings")
    return [killed, dying, start(job, replay_of(data))]


def spoil(path: Path, item: str, field: str) -> None:
    records = [json.loads(line) for line in lines(path)]
    [spoilt] = [record for record in records if record["item"] == item]
    spoilt[field] = "0" * 64
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def test_gold_answers_score_100(starts: Sequence[Start]) -> None:
    child = starts[-1].child
    assert child.code == 0, child.errors
    assert child.headlines() == {one.task: (100.0,) for one in PROTOCOLS}
    for one in PROTOCOLS:
        outcomes = child.outcomes(one.task)
        assert {outcome.scorer for outcome in outcomes} == {SCORER}
        assert {(outcome.score, outcome.status) for outcome in outcomes} == {(1.0, "ok")}
        assert [outcome.item for outcome in outcomes if outcome.item] == [
            item.id for item in in_order(child, one.task, items(one.task, Path(child.job.data or ""))[: one.limit])
        ]


def in_order(child: Ended, task: str, wanted: Sequence[Item]) -> Sequence[Item]:
    """OpenCompass asks the subjects of MMLU in an order of its own, and the items of each in ours."""
    if not task.startswith("mmlu"):
        return wanted
    subjects = list(dict.fromkeys(outcome.item.rpartition("-")[0] for outcome in child.outcomes(task)))
    return sorted(wanted, key=lambda item: subjects.index(item.row["subject"]))


def test_a_killed_child_leaves_its_answers_and_no_word(starts: Sequence[Start]) -> None:
    killed, dying, _ = starts
    assert killed.child.code != 0
    left = dying.stored["gsm8k"]
    assert 12 <= len(left) <= 17
    assert not (asked_questions(dying.asked) & {question_of_item(item, starts) for item, _ in left})


def question_of_item(item: str, starts: Sequence[Start]) -> str:
    data = Path(starts[0].child.job.data or "")
    [row] = [one for one in items("gsm8k", data) if one.id == item]
    return text_of(row.prompt).partition("\n\nSolve the problem")[0]


def asked_questions(asked: Sequence[tuple[str, Body]]) -> set[str]:
    return {question_of(body["messages"][-1]["content"]) for _, body in asked if "messages" in body}


def test_a_dying_endpoint_ends_the_child_with_a_sentence(starts: Sequence[Start]) -> None:
    _, dying, _ = starts
    assert dying.child.code == 1
    assert "was lost while it answered item 'test-" in dying.child.errors.splitlines()[-1]
    assert "of gsm8k (gsm8k/gsm8k_gen_1d7fe4), sample 0" in dying.child.errors


def test_the_next_start_asks_for_what_is_missing_and_for_nothing_else(starts: Sequence[Start]) -> None:
    *_, last = starts
    total = {task.task: task.items for task in last.child.done.tasks}
    expected = {task: total[task] - len(last.stored[task]) for task in total}
    expected["gsm8k"] += 2  # another prompt, another decoding
    assert {task.task: task.asked for task in last.child.done.tasks} == expected
    assert len(last.asked) == sum(expected.values())
    again = {question_of_item(item, starts) for item in ("test-0003", "test-0005")}
    assert again <= asked_questions(last.asked)
    for one in PROTOCOLS:
        answered = Counter((p.item, p.sample) for p in last.child.predictions(one.task))
        assert set(answered.values()) == {1}, "an answer that was asked again replaces the first"


def test_predictions_say_what_was_sent_and_what_it_took(starts: Sequence[Start]) -> None:
    *_, last = starts
    sent = {
        hashlib.sha256("\n\n".join(turn["content"] for turn in body["messages"]).encode()).hexdigest()
        for one in starts
        for _, body in one.asked
        if "messages" in body
    }
    for task in ("gsm8k", "mmlu", "countdown", "sudoku"):
        predictions = last.child.predictions(task)
        assert {one.prompt_sha256 for one in predictions} <= sent
        assert {(one.tokens, one.nfe, one.truncated) for one in predictions} == {(5, 7, False)}
        costs = [
            Cost.model_validate_json(line)
            for line in lines(child_folder(last.child.folder) / "asked" / f"{task}.jsonl")
        ]
        assert {(one.item, one.sample) for one in costs} == {(one.item, one.sample) for one in predictions}
        assert all(0 < one.seconds < 60 and one.prompt_tokens == 3 for one in costs)


def test_the_protocols_decoding_is_sent_with_every_request(starts: Sequence[Start]) -> None:
    *_, last = starts
    sampling = PROTOCOLS[0].sampling
    for path, body in last.asked:
        if path == "/v1/likelihood":
            assert body["mc_samples"] == 4
            continue
        assert body["extra"] == dict(sampling) | {"return": ["nfe"]}
        assert body["max_tokens"] == sampling.gen_length
        assert body["model"] == "m"


def test_four_worked_examples_come_as_turns(starts: Sequence[Start]) -> None:
    *_, last = starts
    asked = [body["messages"] for path, body in last.asked if path == "/v1/chat/completions"]
    shots = next(turns for turns in asked if len(turns) > 1 and "step by step" in turns[-1]["content"])
    assert [turn["role"] for turn in shots] == ["user", "assistant"] * 4 + ["user"]


def test_the_key_reaches_the_endpoint_and_no_file(starts: Sequence[Start]) -> None:
    *_, last = starts
    for path in last.child.folder.rglob("*"):
        assert not path.is_file() or KEY.encode() not in path.read_bytes()
    assert KEY not in last.child.errors


def test_progress_ends_with_everything(starts: Sequence[Start]) -> None:
    told = starts[-1].child.told
    assert told[0].phase == "start"
    for one in PROTOCOLS:
        of_task = [line for line in told if line.phase == "generate" and line.task == one.task]
        assert of_task[-1].done == of_task[-1].of > 0
        assert all(first.done <= second.done for first, second in pairwise(of_task))


def test_start_up_is_paid_once_and_overhead_is_small(starts: Sequence[Start]) -> None:
    done = starts[-1].child.done
    n = sum(task.items for task in done.tasks)
    assert (done.prompt_seconds + done.score_seconds) / n < 0.1, "20 ms are wanted; a busy machine is slower"


def test_opencompass_leaves_nothing_behind(starts: Sequence[Start]) -> None:
    folder = child_folder(starts[-1].child.folder)
    assert sorted(path.name for path in folder.iterdir()) == ["asked", "done.json", "items", "job.json", "work"]
    assert not list((folder / "work").iterdir())


DECLARED = {
    "aime24": "opencompass:aime2024/aime2024_gen",
    "arc_c": "opencompass:ARC_c/ARC_c_gen",
    "arc_c_ppl": "opencompass:ARC_c/ARC_c_ppl",
    "gpqa": "opencompass:gpqa/gpqa_gen",
    "hellaswag": "opencompass:hellaswag/hellaswag_gen_6faab5",
    "hellaswag_ppl": "opencompass:hellaswag/hellaswag_ppl",
    "ifeval": "opencompass:IFEval/IFEval_gen",
    "mmlu_pro": "opencompass:mmlu_pro/mmlu_pro_gen",
    "olympiad_bench": "opencompass:OlympiadBench/OlympiadBench_0shot_gen_be8b13",
}
"""Tasks whose data is not at hand, asked with rows made by hand in the right form of file."""
ANSWERS = {
    "How many faces has a cube": "It is $\\boxed{6}$.",
    "Which of these burns": "C",
    "Which of these swims": "D",
    "What is the speed of light": "ANSWER: %s",
    "a pan on the stove. He": "B",
    "a dog barks. It": "A",
    "What is 2 + 2": "So ANSWER: C",
    "Name two rivers": "* rhine\n* elbe",
    "Find the sum of 1 and 2": "So the final answer is \\boxed{3}.",
}
BURNS = ["water", "sand", "wood", "iron"]
ENDINGS = ["sings a song.", "waits until it is hot.", "leaves the house.", "sleeps."]


def write_declared(folder: Path) -> None:
    """Files in the form in which OpenCompass distributes them."""

    def choices(texts: Sequence[str], labels: str) -> list[dict[str, str]]:
        return [{"text": text, "label": label} for text, label in zip(texts, labels, strict=True)]

    def write(name: str, text: str) -> None:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")

    def jsonl(name: str, rows: Sequence[object]) -> None:
        write(name, "".join(json.dumps(row) + "\n" for row in rows))

    arc = [
        ("Which of these burns?", choices(BURNS, "ABCD"), "C"),
        ("Which of these is a metal?", choices(["wood", "iron", "air"], "ABC"), "B"),
        ("Which of these swims?", choices(["cat", "hen", "cow", "cod"], "1234"), "4"),
    ]
    jsonl(
        "ARC/ARC-c/ARC-Challenge-Test.jsonl",
        [
            {"id": f"arc-{number}", "question": {"stem": stem, "choices": options}, "answerKey": key}
            for number, (stem, options, key) in enumerate(arc)
        ],
    )
    jsonl("aime.jsonl", [{"origin_prompt": "How many faces has a cube?", "gold_answer": "6"}])
    jsonl(
        "hellaswag/hellaswag.jsonl",
        [
            {"query": "Cooking: A man puts a pan on the stove. He", "choices": ENDINGS, "gold": 1},
            {"query": "In a yard a dog barks. It", "choices": ENDINGS[::-1], "gold": 0},
        ],
    )
    rivers = {
        "key": 7, "prompt": "Name two rivers in 2 bullet points and use no commas.",
        "instruction_id_list": ["detectable_format:number_bullet_lists", "punctuation:no_comma"],
        "kwargs": [{"num_bullets": 2}, {}],
    }  # fmt: skip
    jsonl("ifeval/input_data.jsonl", [rivers])
    header = ["x"] * 7 + [
        "Question",
        "Correct Answer",
        "Incorrect Answer 1",
        "Incorrect Answer 2",
        "Incorrect Answer 3",
    ]
    row = ["y"] * 7 + ["What is the speed of light?", "299792 km/s", "300 km/s", "3 km/s", "1 km/s"]
    write("gpqa/gpqa_diamond.csv", ",".join(header) + "\n" + ",".join(row) + "\n")
    problem = {
        "id": 1, "question": "Find the sum of 1 and 2.", "final_answer": ["3"], "language": "English",
        "subject": "Math", "question_type": "Open-ended", "answer_type": "Numerical", "is_multiple_answer": False,
        "unit": None, "error": None,
    }  # fmt: skip
    write("OlympiadBench/OE_TO_maths_en_COMP.json", json.dumps([problem]))
    pro = {
        "question_id": [1], "question": ["What is 2 + 2?"], "options": [["2", "3", "4", "5", "6"]], "answer": ["C"],
        "category": ["math"], "cot_content": ["A: Let's think step by step. It is 4."],
    }  # fmt: skip
    (folder / "mmlu_pro" / "data").mkdir(parents=True)
    for split in ("validation", "test"):
        parquet.write_table(pyarrow.table(pro), folder / "mmlu_pro" / "data" / f"{split}-00000-of-00001.parquet")
    files = {
        str(path.relative_to(folder)): FileRecord(
            sha256=hashlib.sha256(path.read_bytes()).hexdigest(), bytes=path.stat().st_size, rows=None, address=None,
            revision=None, date="2026-01-31T12:00:00Z",
        )
        for path in folder.rglob("*")
        if path.is_file()
    }  # fmt: skip
    (folder / NAME).write_text(DataRecord(files=files).model_dump_json())


@pytest.fixture(scope="module")
def second(data: Path, folder: Path) -> tuple[Ended, Replay]:
    """The published tasks answered wrongly, greedy and sampled, and the declared ones rightly."""
    both = folder / "data"
    both.mkdir()
    write_declared(both)
    for path in data.iterdir():
        (both / path.name).symlink_to(path)
    wrong = replay_of(data, wrongly)

    def say(prompt: str) -> str:
        found = next((answer for question, answer in ANSWERS.items() if question in prompt), None)
        if found is None:
            return wrong.say(prompt)
        shown = re.search(r"([A-D])\) 299792 km/s", prompt)
        return found % shown[1] if shown else found

    def rank(context: str, continuation: str) -> float:
        rightly = {"burns": "wood", "swims": "cod", "stove": "waits", "barks": "sleeps"}
        word = next((word for question, word in rightly.items() if question in context), None)
        return wrong.rank(context, continuation) if word is None else -1.0 - (word not in continuation)

    published = [
        one.model_copy(update={"samples": 1, "limit": 20} if one.task in ("countdown", "sudoku") else {})
        for one in PROTOCOLS
    ]
    declared = [
        protocol(task, prompt, **({"template": "none", "mc_samples": 4} if task.endswith("_ppl") else {}))
        for task, prompt in DECLARED.items()
    ]
    with replaying(Replay(say, rank)) as replay:
        job = ChildJob(
            directory=str(folder / "second"), data=str(both), url=replay.url, model="m",
            protocols=(*published, *declared), score_runs=3,
        )  # fmt: skip
        return ended(job), replay


def wrongly(text: str) -> str:
    return "ABCD"[("ABCD".index(text) + 1) % 4] if text in "ABCD" else "it is 0.5"


def test_wrong_answers_score_0_greedy_and_sampled(second: tuple[Ended, Replay]) -> None:
    child, replay = second
    assert child.code == 0, child.errors
    told = child.headlines()
    assert {one.task: told[one.task] for one in PROTOCOLS} == {
        one.task: (0.0,) * (2 if one.task in ("countdown", "sudoku") else 1) for one in PROTOCOLS
    }
    assert [len(child.outcomes(task)) for task in ("countdown", "sudoku")] == [40, 40]
    sampled = [body for _, body in replay.asked if body.get("temperature") == 1.0]
    assert len(sampled) == 40
    assert len({body["seed"] for body in sampled}) == 40


def test_declared_tasks_work_on_rows_made_by_hand(second: tuple[Ended, Replay]) -> None:
    child, _ = second
    assert {task: child.headlines()[task] for task in DECLARED} == {
        task: () if task == "olympiad_bench" else (100.0,) for task in DECLARED
    }


def test_an_evaluator_that_cannot_be_imported_leaves_its_task_without_a_score(second: tuple[Ended, Replay]) -> None:
    child, _ = second
    [said] = [one for one in child.done.tasks if one.task == "olympiad_bench"]
    assert said.status == "not_scored"
    assert "antlr4" in said.why
    assert len(child.predictions("olympiad_bench")) == 1
    assert not (child_folder(child.folder) / "items" / "olympiad_bench.jsonl").exists()


def test_an_item_that_opencompass_drops_is_named_and_not_scored(second: tuple[Ended, Replay]) -> None:
    child, _ = second
    for task in ("arc_c", "arc_c_ppl"):
        [said] = [one for one in child.done.tasks if one.task == task]
        assert (said.items, said.dropped) == (2, ("arc-1",))
        assert sorted(one.item for one in child.predictions(task)) == ["arc-0", "arc-2"]
        assert [one.item for one in child.outcomes(task)] == ["arc-0", "arc-2"]


def test_evaluators_with_a_clock_score_several_times(second: tuple[Ended, Replay]) -> None:
    child, _ = second
    [aime] = [one for one in child.done.tasks if one.task == "aime24"]
    assert aime.wall_clock
    assert aime.moved == ()
    assert aime.evaluator.endswith("MATHVerifyEvaluator")


def test_likelihoods_are_asked_behind_the_text_that_the_choices_share(second: tuple[Ended, Replay]) -> None:
    _, replay = second
    bodies = [body for path, body in replay.asked if path == "/v1/likelihood"]
    [stove] = [body for body in bodies if "a pan on the stove" in body["choices"][0]["context"]]
    assert [choice["continuation"] for choice in stove["choices"]] == [f"\n{ending}" for ending in ENDINGS]
    assert {choice["context"] for choice in stove["choices"]} == {"A man puts a pan on the stove. He"}


RECORDED = {
    "gsm8k": ("gsm8k_len128_steps64", "gsm8k_len256_steps128"),
    "math_500": ("math500_len256_steps128", "math500_len512_steps256"),
}


@pytest.fixture(scope="module")
def recorded(data: Path, folder: Path) -> Ended:
    """What LLaDA-8B-Instruct answered, two lengths as two samples, and four programs; scored, and nothing asked."""
    protocols = [
        protocol("gsm8k", "opencompass:gsm8k/gsm8k_gen", samples=1),
        protocol("math_500", "opencompass:math/math_0shot_gen_11c4b5", samples=1),
        protocol("mbpp", "opencompass:mbpp/mbpp_gen_830460", limit=4),
    ]
    job = ChildJob(directory=str(folder / "recorded"), data=str(data), protocols=tuple(protocols), phases=("score",))
    for task, names in RECORDED.items():
        texts = [generations(data, name) for name in names]
        asked = items(task, data)
        store(job, task, [(item, [text.get(row, "") for text in texts]) for row, item in enumerate(asked)])
    asked = items("mbpp", data)[:4]
    store(job, "mbpp", [(i, [text]) for i, text in zip(asked, programs(asked, folder / "evil"), strict=True)])
    return ended(job)


def generations(data: Path, name: str) -> dict[int, str]:
    rows = map(json.loads, lines(data / "llada_generations" / f"{name}.jsonl"))
    return {row["index"]: row["generation"] for row in rows}


def programs(asked: Sequence[Item], evil: Path) -> list[str]:
    """Right; right but for a file that it writes first; right but for a connection; wrong."""
    codes = [item.row["code"] for item in asked]
    write = f"open({str(evil)!r}, 'w').write('here')"
    connect = "import socket; socket.create_connection(('127.0.0.1', 1), 1)"
    whole = [codes[0], f"{write}\n{codes[1]}", f"{connect}\n{codes[2]}", "def nothing():\n    pass"]
    return [f"[BEGIN]\n'{code}'\n[DONE]" for code in whole]


def store(job: ChildJob, task: str, answers: Sequence[tuple[Item, Sequence[str]]]) -> None:
    path = Path(job.directory) / "predictions" / f"{task}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    predictions = [
        Prediction(
            item=item.id, sample=sample, prompt_sha256="0" * 64, output=text, tokens=1, nfe=1, truncated=False
        ).model_dump_json()
        for item, texts in answers
        for sample, text in enumerate(texts)
    ]  # fmt: skip
    path.write_text("".join(f"{line}\n" for line in predictions), encoding="utf-8")


def test_recorded_answers_of_llada_get_the_published_numbers(recorded: Ended, data: Path) -> None:
    """GSM8K 70.9 and 78.0 over the 1,130 items that were asked, MATH-500 33.4 and 37.2."""
    assert recorded.code == 0, recorded.errors
    solved = {"gsm8k": (801, 881), "math_500": (167, 186)}
    for task, names in RECORDED.items():
        place = {item.id: row for row, item in enumerate(items(task, data))}
        for sample, name in enumerate(names):
            asked = generations(data, name)
            scores = [
                outcome.score
                for outcome in recorded.outcomes(task)
                if outcome.sample == sample and place[outcome.item] in asked
            ]
            assert (len(scores), sum(scores)) == (len(asked), solved[task][sample])


def test_scoring_alone_changes_no_answer_and_asks_nothing(recorded: Ended) -> None:
    assert {(one.asked, one.resumed) for one in recorded.done.tasks} == {(0, 0)}
    assert len(recorded.predictions("gsm8k")) == 2 * 1319
    assert not [line for line in recorded.told if line.phase == "generate"]


def test_programs_run_apart_or_not_at_all(recorded: Ended, folder: Path) -> None:
    [said] = [one for one in recorded.done.tasks if one.task == "mbpp"]
    assert not (folder / "evil").exists()
    if said.status == "not_scored":
        assert "nothing keeps a program apart here" in said.why
        return
    assert [outcome.score for outcome in recorded.outcomes("mbpp")] == [1.0, 0.0, 0.0, 0.0]
    assert said.wall_clock
