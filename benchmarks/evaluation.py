"""`make bench-eval`: what scoring and OpenCompass cost beside generation, in three tables.

Answers per second of the judges, on published generations of LLaDA-8B-Instruct where the folder of reference data is
there, else on made texts; programs per second with fresh processes each; the start of OpenCompass and its time per
item, against an endpoint that answers at once. Judges in CPU seconds of this process, so that what else runs moves them
little; whatever works in other processes by the wall.
"""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import cycle, islice
from pathlib import Path

from dare.job import machine
from dare.opencompass.job import ChildJob, command, environment, read_done, write_job
from dare.rewards import equivalence, math_answer, mathverify, notation
from dare.sampling_config import SamplingConfig
from dare.sandbox import Limits, NoSandboxError, Program, Sandbox
from dare.scoring import cut
from dare.spec import TaskProtocol
from dare.tasks import Item, Task, load_task

ENDS = ("<|eot_id|>", "<|endoftext|>")
GENERATIONS = {
    "gsm8k": ("gsm8k", "gsm8k_len256_steps128"),
    "math_500": ("math_500", "math500_len512_steps256"),
    "countdown": ("countdown_published", "countdown_len256_steps128"),
    "sudoku": ("sudoku_published", "sudoku_len256_steps128"),
}
"""Task and file for each of the judges that published generations exist for."""
REASONING = (
    "First we look at what is given: 3 boxes of 12 pencils are 3 * 12 = 36 pencils, and \\(36 - 9 = 27\\) are left. "
    "Each of the 5 children would get $27 / 5 = 5.4$, or \\frac{27}{5} of them.\n"
) * 3
"""Before a made answer; about as long as a published one."""
MADE = 1000

Answers = Sequence[tuple[Item, str]]


def answers(task: Task, file: Path | None, data: Path | None) -> Answers:
    """Published generations of a task with their items; made ones where there are none."""
    if file is None or not file.is_file():
        item, right = task.example
        return [(item, f"{REASONING}The answer is {answer}.") for answer in islice(cycle((right, "7", "B")), MADE)]
    items = task.items("test", data)
    rows = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return [(items[row["index"]], cut(row["generation"], ENDS)) for row in rows]


def timed(work: Callable[[], object], clock: Callable[[], float], times: int) -> float:
    """Median seconds."""
    taken = []
    for _ in range(times):
        start = clock()
        work()
        taken.append(clock() - start)
    return statistics.median(taken)


def judges(shared: Path | None, times: int) -> Iterator[str]:
    """A row for each judge."""
    yield "| judge | answers | characters each | answers/s | clock |"
    yield "|---|---|---|---|---|"
    data = shared / "data" if shared else None
    for name, (task_name, file) in {
        **GENERATIONS,
        "mmlu": ("mmlu", ""),
        "story_problems": ("story_problems", ""),
    }.items():
        task = load_task(task_name)
        asked = answers(task, data / "llada_generations" / f"{file}.jsonl" if data and file else None, data)
        elsewhere = task.judge_all is not None
        clock = time.monotonic if elsewhere else time.process_time
        task.verdicts(asked[:50], {})  # whatever is started or compiled once
        seconds = timed(lambda task=task, asked=asked: task.verdicts(asked, {}), clock, times)  # type: ignore[misc]
        length = statistics.fmean(len(text) for _, text in asked)
        how = "wall, 2 processes of math-verify" if elsewhere else "CPU"
        made = "" if data and file else " (made texts)"
        yield f"| {name}{made} | {len(asked)} | {length:.0f} | {len(asked) / seconds:,.0f} | {how} |"


def equivalences(shared: Path | None) -> Iterator[str]:
    """What it saves to ask math-verify about the pairs alone that our own rules cannot decide."""
    task = load_task("math_500")
    data = shared / "data" if shared else None
    asked = answers(task, data / "llada_generations" / f"{GENERATIONS['math_500'][1]}.jsonl" if data else None, data)
    read = [(math_answer.read(text), str(item.gold["answer"])) for item, text in asked[:250]]
    pairs = [(found.text, gold) for found, gold in read if found is not None and len(found.text) < notation.MAX_LENGTH]
    verifier = mathverify.shared()
    verifier.ask("1", "1")
    ours = timed(lambda: [equivalence.equal(answer, gold) for answer, gold in pairs], time.monotonic, 1)
    theirs = timed(lambda: [verifier.ask(gold, answer) for answer, gold in pairs], time.monotonic, 1)
    yield f"MATH-500, {len(pairs)} pairs of answer and gold, one by one: {1000 * ours / len(pairs):.2f} ms a pair,"
    yield f"all of them by math-verify {1000 * theirs / len(pairs):.2f} ms: {theirs / ours:.1f}x as long."


def programs(shared: Path | None, count: int) -> Iterator[str]:
    """Right programs of HumanEval with their tests, each in fresh processes of its own."""
    yield "| programs | at once | programs/s | ratio | CPU ms each |"
    yield "|---|---|---|---|---|"
    task = load_task("humaneval")
    chosen = [task.example[0]] if shared is None else list(task.items("test", shared / "data"))
    solved = [
        (item.gold["prompt"] + item.row.get("canonical_solution", "    return 2 * x\n"), item.gold)
        for item in islice(cycle(chosen), count)
    ]
    before = _used_by_children()
    plain = timed(lambda: _unguarded([f"{source}\n{gold['tests']}" for source, gold in solved]), time.monotonic, 1)
    used = 1000 * (_used_by_children() - before) / count
    yield f"| `python -c`, no isolation | 1 | {count / plain:.1f} | 1.0x | {used:.0f} |"
    asked = [Program(source, gold["tests"], gold["entry_point"]) for source, gold in solved]
    for workers in (1, 2, 4):
        sandbox, before = Sandbox(Limits(), workers), _used_by_children()
        try:
            sandbox.run(asked[:1])
            seconds = timed(lambda sandbox=sandbox: _passed(sandbox, asked), time.monotonic, 1)  # type: ignore[misc]
        except NoSandboxError as error:
            yield f"| `dare.sandbox` | {workers} | not here: {error} |  |  |"
            return
        finally:
            sandbox.close()
        used = 1000 * (_used_by_children() - before) / count
        figures = f"{count / seconds:.1f} | {plain / seconds:.1f}x | {used:.0f}"
        yield f"| `dare.sandbox`, two processes a program | {workers} | {figures} |"


def _used_by_children() -> float:
    """CPU seconds of the processes that have ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _unguarded(sources: Sequence[str]) -> None:
    for source in sources:
        subprocess.run([sys.executable, "-I", "-S", "-c", source], check=True, stdin=subprocess.DEVNULL, timeout=60)


def _passed(sandbox: Sandbox, asked: Sequence[Program]) -> None:
    failed = [outcome for outcome in sandbox.run(asked) if outcome.status != "passed"]
    if failed:
        raise SystemExit(f"{len(failed)} of {len(asked)} right programs did not pass: {failed[0]}")


@contextmanager
def at_once(said: str) -> Iterator[str]:
    """An endpoint that gives one answer to everything: its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            choice = {"index": 0, "message": {"role": "assistant", "content": said}, "finish_reason": "stop"}
            usage = {"prompt_tokens": 1, "completion_tokens": 1, "nfe": 1}
            content = json.dumps({"choices": [{**choice, "extra": {"nfe": 1}}], "usage": usage}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 256

    server = Server(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def opencompass(shared: Path) -> Iterator[str]:
    """One child over several tasks."""
    yield "| job of OpenCompass | items | start, s | prompts, ms each | answers, ms each | scores, ms each | CPU s |"
    yield "|---|---|---|---|---|---|---|"
    sampling = SamplingConfig(gen_length=16, block_length=8, steps_per_block=8)
    asked = {
        "GSM8K": [("gsm8k", "opencompass:gsm8k/gsm8k_gen_1d7fe4")],
        "GSM8K, Countdown, Sudoku": [
            ("gsm8k", "opencompass:gsm8k/gsm8k_gen_1d7fe4"),
            ("countdown", "task"),
            ("sudoku", "task"),
        ],
    }
    for title, tasks in asked.items():
        protocols = tuple(
            TaskProtocol(task=task, task_version=load_task(task).version, sampling=sampling, prompt=prompt)
            for task, prompt in tasks
        )
        with tempfile.TemporaryDirectory() as folder, at_once(REASONING + "The answer is 18") as url:
            job = ChildJob(
                directory=str(Path(folder).resolve()),
                data=str(shared / "data"),
                url=url,
                model="m",
                protocols=protocols,
            )
            before = _used_by_children()
            ended = subprocess.run(
                command(write_job(job)), env=environment(), capture_output=True, text=True, check=False
            )
            used = _used_by_children() - before
            try:
                done = read_done(job)
            except RuntimeError as error:
                raise SystemExit(f"{error}\n{ended.stderr[-2000:]}") from error
        items = sum(task.items for task in done.tasks)
        per_item = (1000 * part / items for part in (done.prompt_seconds, done.generate_seconds, done.score_seconds))
        figures = " | ".join(f"{part:.2f}" for part in per_item)
        yield f"| {title} | {items} | {done.start_seconds:.1f} | {figures} | {used:.1f} |"


def main() -> None:
    """Print the tables that can be made here."""
    parser = argparse.ArgumentParser(prog="benchmarks.evaluation", description=__doc__)
    root = Path(__file__).parents[1]
    parser.add_argument("--shared", type=Path, default=root.parent / "shared", help="the folder of reference data")
    parser.add_argument("--quick", action="store_true", help="fewer of all: to see that it works, not to quote")
    parser.add_argument("--only", choices=("judges", "programs", "opencompass"))
    given = parser.parse_args()
    shared = given.shared.resolve() if given.shared.is_dir() else None
    here = machine()
    print(f"{here['processor']}, Python {here['python']}.", flush=True)
    tables: dict[str, list[Callable[[], Iterator[str]]]] = {
        "judges": [lambda: judges(shared, 1 if given.quick else 5), lambda: equivalences(shared)],
        "programs": [lambda: programs(shared, 10 if given.quick else 164)],
        "opencompass": [lambda: opencompass(shared)] if shared else [],
    }
    for name, parts in tables.items():
        if given.only in (None, name):
            for part in parts:
                print()
                for row in part():
                    print(row, flush=True)


if __name__ == "__main__":
    main()
