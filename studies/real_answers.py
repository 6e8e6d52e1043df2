"""What real answers of LLaDA-8B-Instruct are worth, scorer by scorer: `python -m studies.real_answers --data FOLDER`.

The answers are those published with d1, to its own prompts, at several lengths. They are scored by our scorers, by d1's
published rules, by OpenCompass as released and by lm-evaluation-harness, and every item on which two of them disagree
is named with a reason. Each (set, scorer) is one line of the results file, and a study that is started again does what
is missing. `--report` only writes the tables: into `docs/studies/real-answers.md`, and the first into
`docs/evaluation.md`.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from fractions import Fraction
from functools import cache
from itertools import product
from pathlib import Path
from statistics import fmean
from typing import Any

from dare.flags import Disagreement, wilson
from dare.rewards import sudoku
from dare.scoring import MASKS, cut
from dare.second_opinion import METRICS, Answer, ask
from dare.spec import ItemOutcome, Prediction, TaskProtocol
from dare.tasks import Item, Verdict, load_task
from studies import d1_reading

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "studies" / "real-answers.jsonl"
PAGE = ROOT / "docs" / "studies" / "real-answers.md"
SUMMARY = ROOT / "docs" / "evaluation.md"
ENDS = ("<|eot_id|>", "<|endoftext|>")
OURS = "dare-1"
LEFT_SIDE, ANYWHERE = "dare-1, equation: left_side_of_equation", "dare-1, boxed: anywhere"
UNDER: dict[str, dict[str, str]] = {
    OURS: {},
    LEFT_SIDE: {"equation": "left_side_of_equation"},
    ANYWHERE: {"boxed": "anywhere"},
}
"""Our scorer under policies."""
D1 = "d1's rules"
OPENCOMPASS = {
    "gsm8k": ("opencompass:gsm8k/gsm8k_gen",),
    "math_500": ("opencompass:math/math_prm800k_500_0shot_cot_gen_11c4b5", "opencompass:math/math_0shot_gen_11c4b5"),
}
"""Configurations whose evaluators judge the answers; their prompts play no part."""
SCORE_RUNS = 3
PUBLISHED = {
    "gsm8k": {128: 68.7, 256: 76.7, 512: 78.2},
    "math_500": {128: 26.0, 256: 32.4, 512: 36.2},
    "countdown_published": {128: 20.7, 256: 19.5, 512: 16.0},
    "sudoku_published": {128: 11.7, 256: 6.7, 512: 5.5},
}
"""Per cent, as reported with d1 (from memory): all items of GSM8K, MATH-500 and Countdown, 256 Sudokus by cells."""
TITLES = {"gsm8k": "GSM8K", "math_500": "MATH-500", "countdown_published": "Countdown", "sudoku_published": "Sudoku"}


@dataclass(frozen=True)
class Answers:
    """One published file: a task at one length."""

    name: str
    task: str
    length: int
    steps: int


SETS = tuple(
    Answers(f"{name}_len{length}_steps{length // 2}", task, length, length // 2)
    for name, task, lengths in (
        ("gsm8k", "gsm8k", (128, 256)),
        ("math500", "math_500", (256, 512)),
        ("countdown", "countdown_published", (128, 256, 512)),
        ("sudoku", "sudoku_published", (128, 256, 512)),
    )
    for length in lengths
)


@dataclass(frozen=True)
class Row:
    """One published answer and what it is held against."""

    item: Item
    raw: str

    @property
    def text(self) -> str:
        """Up to its first end token, as a decoder hands it over."""
        return cut(self.raw, ENDS)


@dataclass(frozen=True)
class Line:
    """One line of the results file: one scorer on one set."""

    set: str
    scorer: str
    solved: str
    """`1` or `0` for each answer in the order of the file, `-` where the scorer has no verdict."""
    reward: float
    """Mean; of Sudoku, the share of holes."""
    no_answer: int
    moved: tuple[str, ...]
    """Items whose verdict was another in one of several runs."""
    seconds: float
    commit: str
    date: str
    cores: int
    versions: dict[str, str]


def rows(data: Path, answers: Answers) -> list[Row]:
    """The answers of a set in the order of its file."""
    items = load_task(answers.task).items("test", data)
    path = data / "llada_generations" / f"{answers.name}.jsonl"
    with path.open(encoding="utf-8") as file:
        return [Row(items[one["index"]], one["generation"]) for one in map(json.loads, file)]


# Scorers


def ours(data: Path, answers: Answers, policies: Mapping[str, str]) -> tuple[list[Verdict], float]:
    """What our scorer says, and the seconds."""
    known = rows(data, answers)
    began = time.perf_counter()
    found = load_task(answers.task).verdicts([(row.item, row.text) for row in known], policies)
    return list(found), time.perf_counter() - began


def by_d1(data: Path, answers: Answers) -> list[float]:
    """d1's own reading; of a Sudoku, its share of holes."""
    known = rows(data, answers)
    if answers.task == "gsm8k":
        return [float(d1_reading.gsm8k(row.raw, Fraction(row.item.gold["answer"]))) for row in known]
    if answers.task == "countdown_published":
        return [
            float(d1_reading.countdown(row.raw, tuple(row.item.gold["numbers"]), row.item.gold["target"]))
            for row in known
        ]
    with (data / "sudoku" / "4x4_test_sudoku.csv").open(encoding="utf-8") as file:
        solutions = {one["Puzzle"]: one["Solution"] for one in csv.DictReader(file)}
    puzzles = [row.item.gold["puzzle"] for row in known]
    return [d1_reading.sudoku_cells(row.raw, p, solutions[p]) for row, p in zip(known, puzzles, strict=True)]


def by_opencompass(data: Path, answers: Answers, prompt: str) -> Line:
    """OpenCompass's evaluator, in its child process, several times where it has a wall clock."""
    from dare.opencompass.job import ChildJob, read_done, write_job

    known = rows(data, answers)
    texts = {row.item.id: row.text for row in known}
    protocol = TaskProtocol(
        task=answers.task,
        task_version=load_task(answers.task).version,
        sampling={"gen_length": answers.length, "block_length": 32, "steps_per_block": 16},  # type: ignore[arg-type]
        prompt=prompt,
    )
    with tempfile.TemporaryDirectory(prefix="real-answers-") as scratch:
        directory = Path(scratch)
        stored = [
            Prediction(
                item=i.id, sample=0, prompt_sha256="", output=texts.get(i.id, ""), tokens=0, nfe=0, truncated=False
            )
            for i in load_task(answers.task).items("test", data)  # rows that are not published count as empty
        ]
        (directory / "predictions").mkdir()
        path = directory / "predictions" / f"{answers.task}.jsonl"
        path.write_text("".join(one.model_dump_json() + "\n" for one in stored), encoding="utf-8")
        job = ChildJob(
            directory=str(directory),
            data=str(data.resolve()),
            protocols=(protocol,),
            phases=("score",),
            score_runs=SCORE_RUNS,
        )
        began = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "dare.opencompass", str(write_job(job))], check=False, stdout=subprocess.DEVNULL
        )
        seconds = time.perf_counter() - began
        done = read_done(job)
        [told] = done.tasks
        if done.outcome != "succeeded" or told.status != "scored":
            raise RuntimeError(f"OpenCompass did not score {answers.name}: {done.message or told.why}")
        lines = (directory / "opencompass" / "items" / f"{answers.task}.jsonl").read_text(encoding="utf-8").splitlines()
    said = {one.item: one for one in map(ItemOutcome.model_validate_json, lines)}
    solved = "".join(_mark(said.get(row.item.id)) for row in known)
    published = {row.item.id for row in known}
    return line(
        answers.name,
        opencompass_name(prompt),
        solved,
        moved=tuple(item for item in told.moved if item in published),
        seconds=seconds,
        versions={"opencompass": done.opencompass or "", "evaluator": told.evaluator},
    )


def opencompass_name(prompt: str) -> str:
    """A scorer's name in the tables."""
    return f"opencompass-0.5.4, {prompt.partition('/')[2]}"


def _mark(outcome: ItemOutcome | None) -> str:
    return "-" if outcome is None or outcome.status == "error" else str(int(outcome.score > 0.5))


def by_harness(data: Path, answers: Answers) -> Iterator[Line]:
    """lm-evaluation-harness's scorers, all from one reading."""
    known = rows(data, answers)
    asked = [
        Answer(row.item.id, row.text, str(row.item.gold["answer"]), str(row.item.row.get("solution", "")))
        for row in known
    ]
    began = time.perf_counter()
    opinion = ask(answers.task, asked)
    seconds = time.perf_counter() - began
    for metric in METRICS["gsm8k" if answers.task == "gsm8k" else "math"]:
        solved = "".join("-" if one is None else str(int(one[metric])) for one in opinion.verdicts)
        yield line(answers.name, f"lm_eval-0.4.13, {metric}", solved, seconds=seconds, versions=dict(opinion.versions))


def line(
    name: str,
    scorer: str,
    solved: str,
    *,
    reward: float | None = None,
    no_answer: int = 0,
    moved: tuple[str, ...] = (),
    seconds: float,
    versions: dict[str, str] | None = None,
) -> Line:
    """A line of today, on this machine and commit."""
    judged = [mark == "1" for mark in solved if mark != "-"]
    commit = subprocess.run(
        ["git", "rev-parse", "--short=7", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return Line(
        set=name,
        scorer=scorer,
        solved=solved,
        reward=round(fmean(judged) if reward is None else reward, 6),
        no_answer=no_answer,
        moved=moved,
        seconds=round(seconds, 2),
        commit=commit.stdout.strip(),
        date=datetime.now(UTC).date().isoformat(),
        cores=os.cpu_count() or 1,
        versions=versions or {},
    )


def lines_of(data: Path, answers: Answers, scorer: str) -> Iterator[Line]:
    """One scorer's work on one set."""
    if scorer in UNDER:
        verdicts, seconds = ours(data, answers, UNDER[scorer])
        solved = "".join("-" if one.status == "error" else str(int(one.solved)) for one in verdicts)
        silent = sum(one.status == "no_answer" for one in verdicts)
        reward = fmean(one.reward for one in verdicts)
        yield line(answers.name, scorer, solved, reward=reward, no_answer=silent, seconds=seconds)
    elif scorer == D1:
        began = time.perf_counter()
        shares = by_d1(data, answers)
        solved = "".join(str(int(share == 1)) for share in shares)
        yield line(answers.name, scorer, solved, reward=fmean(shares), seconds=time.perf_counter() - began)
    elif scorer == "lm_eval":
        yield from by_harness(data, answers)
    else:
        yield by_opencompass(data, answers, scorer)


def scorers(answers: Answers) -> list[str]:
    """Who scores a set, the cheap ones first."""
    found = [OURS]
    if answers.task == "countdown_published":
        found += [LEFT_SIDE, ANYWHERE]
    if answers.task != "math_500":
        found.append(D1)
    if answers.task in OPENCOMPASS:
        found += ["lm_eval", *OPENCOMPASS[answers.task]]
    return found


def study(file: Path, data: Path, only: str) -> None:
    """Do what the results file does not hold yet."""
    done = {(one.set, one.scorer) for one in read(file)}
    for answers in SETS:
        for scorer in scorers(answers):
            names = {
                "lm_eval": [f"lm_eval-0.4.13, {metric}" for metric in METRICS.get(answers.task, METRICS["math"])]
            }.get(scorer, [opencompass_name(scorer) if scorer.startswith("opencompass:") else scorer])
            if only not in scorer or all((answers.name, name) in done for name in names):
                continue
            sys.stderr.write(f"{answers.name}: {scorer}\n")
            for found in lines_of(data, answers, scorer):
                with file.open("a", encoding="utf-8") as results:
                    results.write(json.dumps(asdict(found)) + "\n")


def read(file: Path) -> list[Line]:
    """Finished lines."""
    if not file.is_file():
        return []
    known = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [Line(**{**one, "moved": tuple(one["moved"])}) for one in known]


# Reasons


def reason(answers: Answers, row: Row, verdict: Verdict, solved_by_us: bool) -> str:
    """Why one scorer solves an answer that the other does not, as far as the text itself shows it."""
    if answers.task == "gsm8k":
        return _of_a_number(row.text, verdict) if solved_by_us else _of_no_number(row.text, verdict)
    if answers.task == "countdown_published":
        return _of_an_expression(answers, row, solved_by_us)
    return _of_a_formula(row, verdict, solved_by_us)


def _of_an_expression(answers: Answers, row: Row, solved_by_us: bool) -> str:
    if solved_by_us:
        return "a tag without a box: d1 reads the whole text"
    left_side = load_task(answers.task).judging({"equation": "left_side_of_equation"})
    if left_side(row.item, row.text).solved:
        return "an equation, `a+b=c`, in place of an expression"
    return "a box that is never closed" if _open_box(row.text) else "a box outside a closed answer tag"


def _of_a_number(text: str, verdict: Verdict) -> str:
    answer = verdict.answer or ""
    last = text[max(0, text.rfind(r"\boxed{")) :]
    if re.search(r"\d\.0+\W*$", answer):
        return "written with a zero fraction: 29.00 for 29"
    if re.search(r"\d(,|\\,)\d{3}", answer) or re.search(r"\d(,|\\,)\d{3}", last):
        return "written with a thousands separator: 8,000 for 8000"
    if r"\boxed{" not in text and not re.search(r"<answer>.*\d.*</answer>", text, re.DOTALL):
        return "no box and no closed tag: the number that ends the text is read"
    if re.search(r"\\boxed\{[^{}]*\n", text):
        return "a line break in the box"
    return "words or a broken tag behind the answer"


def _of_a_formula(row: Row, verdict: Verdict, solved_by_us: bool) -> str:
    if not solved_by_us:
        return _of_no_number(row.text, verdict)
    if re.search(r"(?<!\\)boxed\{", row.text) and r"\boxed" not in row.text:
        return "a box that lost its backslash"
    return "equal to the gold in value, and written otherwise"


def _of_no_number(text: str, verdict: Verdict) -> str:
    if re.search(r"\\boxed\{\s*(\.\.\.|\\ldots|\\dots)\s*\}", text[max(0, text.rfind(r"\boxed{")) :]):
        return "the prompt's own `...` in the box"
    if _open_box(text):
        return "a box that is never closed"
    if verdict.answer is None:
        return "an empty box or answer tag" if r"\boxed" in text or "<answer>" in text else "prose without a box"
    return "what is marked as the answer is another one"


def _open_box(text: str) -> bool:
    start = text.rfind(r"\boxed{")
    tail = text[start:].replace(r"\{", "").replace(r"\}", "")
    return start >= 0 and tail.count("{") > tail.count("}")


# Tables


def report(data: Path, lines: Sequence[Line]) -> str:
    """All tables in Markdown."""
    by_set = {answers.name: [one for one in lines if one.set == answers.name] for answers in SETS}
    parts = ["### What each scorer says", "", *_scores(by_set, data), ""]
    parts += ["### Who disagrees with dare-1, and beyond noise", "", *_agreement(by_set), ""]
    parts += ["### Every disagreement, by reason", "", *_reasons(by_set, data), ""]
    parts += ["### Sudoku answers that are no 16 digits", "", *_lengths(data), ""]
    parts += ["### Evaluators with a wall clock", "", *_moved(by_set)]
    return "\n".join(parts)


def _scores(by_set: Mapping[str, Sequence[Line]], data: Path) -> Iterator[str]:
    yield "| task | length | scorer | answers | solved, % (95 %) | cells, % | no answer | d1 reports, % | chance, % |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for answers in SETS:
        floor, cells = chance(data, answers)
        for one in sorted(by_set[answers.name], key=lambda one: (one.scorer != OURS, one.scorer)):
            marks = one.solved.replace("-", "")
            n, k = len(marks), marks.count("1")
            low, high, _ = wilson(k, n)
            is_sudoku = answers.task == "sudoku_published"
            solved = (
                "" if is_sudoku and one.scorer == D1 else f"{100 * k / n:.1f} ({100 * low:.1f} to {100 * high:.1f})"
            )
            share = f"{100 * one.reward:.1f}" if is_sudoku else ""
            published = f"{PUBLISHED[answers.task][answers.length]}"
            told = str(one.no_answer) if one.scorer.startswith(OURS) else ""
            at_random = f"{100 * floor:.3g}" + (f"; cells {100 * cells:.1f}" if cells is not None else "")
            yield (
                f"| {TITLES[answers.task]} | {answers.length} | {one.scorer} | {n} | {solved} | {share} | {told} "
                f"| {published} | {at_random} |"
            )


def _agreement(by_set: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield "| task | length | scorer | equal / all | only dare-1 | only the other | beyond noise |"
    yield "|---|---|---|---|---|---|---|"
    for answers, other, mine in pairs(by_set):
        marks = [(a, b) for a, b in zip(mine.solved, other.solved, strict=True) if "-" not in (a, b)]
        only_us, only_they = marks.count(("1", "0")), marks.count(("0", "1"))
        apart = Disagreement(other.scorer, only_us, only_they, len(marks))
        equal = len(marks) - only_us - only_they
        yield (
            f"| {TITLES[answers.task]} | {answers.length} | {other.scorer} | {equal} / {len(marks)} | {only_us} "
            f"| {only_they} | {'yes' if apart.beyond_noise else 'no'} |"
        )


def pairs(by_set: Mapping[str, Sequence[Line]]) -> Iterator[tuple[Answers, Line, Line]]:
    """Each other scorer's line beside ours; d1 does not say whether a Sudoku is solved."""
    for answers in SETS:
        mine = next((one for one in by_set[answers.name] if one.scorer == OURS), None)
        for other in by_set[answers.name]:
            if mine is None or other is mine or (answers.task == "sudoku_published" and other.scorer == D1):
                continue
            yield answers, other, mine


def _reasons(by_set: Mapping[str, Sequence[Line]], data: Path) -> Iterator[str]:
    yield "| task | length | scorer | who solves it | reason | items | which |"
    yield "|---|---|---|---|---|---|---|"
    for answers, other, mine in pairs(by_set):
        if explained_at_once(other.scorer):
            continue
        found: dict[tuple[bool, str], list[str]] = {}
        known, verdicts = rows(data, answers), _verdicts(data, answers)
        for row, verdict, a, b in zip(known, verdicts, mine.solved, other.solved, strict=True):
            if a != b and "-" not in (a, b):
                why = reason(answers, row, verdict, a == "1")
                found.setdefault((a == "1", why), []).append(row.item.id)
        for (us, why), items in sorted(found.items(), key=lambda one: (not one[0][0], -len(one[1]))):
            who = "dare-1" if us else "the other"
            yield (
                f"| {TITLES[answers.task]} | {answers.length} | {other.scorer} | {who} | {why} | {len(items)} "
                f"| {', '.join(items)} |"
            )


def explained_at_once(scorer: str) -> bool:
    """Scorers that read only the form that their own prompt asks for, and a policy of ours: the text says why."""
    return scorer in UNDER or scorer.endswith(
        ("strict-match", "minerva_math exact_match", "hendrycks_math exact_match")
    )


def _lengths(data: Path) -> Iterator[str]:
    yield "| length | 16 digits | others | cells of those with 16, %: dare-1, d1 | cells of the others, %: dare-1, d1 |"
    yield "|---|---|---|---|---|"
    for answers in SETS:
        if answers.task == "sudoku_published":
            verdicts, theirs = _verdicts(data, answers), by_d1(data, answers)
            whole = [sudoku.read_grid(one.answer or "") is not None for one in verdicts]
            cells = []
            for kind in (True, False):
                chosen = [
                    (v.reward, d) for v, d, is_whole in zip(verdicts, theirs, whole, strict=True) if is_whole == kind
                ]
                us, they = (100 * fmean(values) for values in zip(*chosen, strict=True))
                cells.append(f"{us:.1f}, {they:.1f}")
            yield f"| {answers.length} | {sum(whole)} | {len(whole) - sum(whole)} | {' | '.join(cells)} |"


def _moved(by_set: Mapping[str, Sequence[Line]]) -> Iterator[str]:
    yield "| task | length | scorer | runs | items that moved |"
    yield "|---|---|---|---|---|"
    for answers in SETS:
        for one in by_set[answers.name]:
            if "MATHVerify" in one.versions.get("evaluator", ""):
                which = f"{len(one.moved)}: {', '.join(one.moved)}" if one.moved else "0"
                yield f"| {TITLES[answers.task]} | {answers.length} | {one.scorer} | {SCORE_RUNS} | {which} |"


@cache
def _verdicts(data: Path, answers: Answers) -> list[Verdict]:
    return ours(data, answers, {})[0]


@cache
def chance(data: Path, answers: Answers) -> tuple[float, float | None]:
    """The floor of `solved`, of a Sudoku over the puzzles that are in the set, and there also that of its cells."""
    if answers.task != "sudoku_published":
        return load_task(answers.task).chance_floor, None
    puzzles = [row.item.gold["puzzle"] for row in rows(data, answers)]
    return fmean(len(sudoku.solutions(p)) / 4 ** p.count("0") for p in puzzles), fmean(map(expected_cells, puzzles))


def expected_cells(puzzle: str) -> float:
    """Expected share of holes right of uniform digits, against the solution that agrees best."""
    holes = [cell for cell, digit in enumerate(puzzle) if digit == "0"]
    solutions = sudoku.solutions(puzzle)
    undetermined = [cell for cell in holes if len({solution[cell] for solution in solutions}) > 1]
    best = [
        max(sum(d == s[cell] for d, cell in zip(digits, undetermined, strict=True)) for s in solutions)
        for digits in product("1234", repeat=len(undetermined))
    ]
    return ((len(holes) - len(undetermined)) / 4 + fmean(best)) / len(holes)


def masks_left(data: Path) -> dict[str, int]:
    """Answers with mask tokens in them, set by set: failures of the decoder."""
    return {a.name: sum(any(mask in row.raw for mask in MASKS) for row in rows(data, a)) for a in SETS}


def summary(data: Path, lines: Sequence[Line]) -> str:
    """The first table alone, without the scorers that read another prompt's form."""
    by_set = {a.name: [one for one in lines if one.set == a.name and not _reads_another_form(one)] for a in SETS}
    return "\n".join(_scores(by_set, data))


def _reads_another_form(one: Line) -> bool:
    return one.scorer not in UNDER and explained_at_once(one.scorer)


def write(page: Path, mark: str, tables: str) -> None:
    """Put the tables between the page's marks."""
    text = page.read_text(encoding="utf-8")
    marked = re.compile(rf"(<!-- {mark} -->\n).*?(<!-- end -->)", re.DOTALL)
    page.write_text(marked.sub(lambda found: f"{found[1]}{tables}\n{found[2]}", text, count=1), encoding="utf-8")


def main() -> None:
    """Do what is missing, then write the tables."""
    parser = argparse.ArgumentParser(prog="studies.real_answers", description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="folder of published benchmark data")
    parser.add_argument("--results", type=Path, default=RESULTS)
    parser.add_argument("--only", default="", help="scorers whose name contains this")
    parser.add_argument("--report", action="store_true", help="only write the tables of what is there")
    given: Any = parser.parse_args()
    if not given.report:
        study(given.results, given.data, given.only)
    lines = read(given.results)
    write(PAGE, "tables", report(given.data, lines))
    write(SUMMARY, "real answers", summary(given.data, lines))


if __name__ == "__main__":
    main()
