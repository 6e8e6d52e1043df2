"""`dare evaluate`, `dare rescore` and score runs: refused early, continued, never half a number; processes that end."""

from __future__ import annotations

import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest
from safetensors.torch import load_file, save_file
from tiny import train_job, write_job
from typer.testing import CliRunner

import dare.tasks
from dare.__main__ import app
from dare.catalog import backbone_directory, backbones
from dare.commands.running import Rate
from dare.evaluation.child import Child
from dare.evaluation.served import ServedError, answers, server
from dare.job import JobError, read_job
from dare.policy import open_policy
from dare.scoring_run import run_score
from dare.spec import (
    BackboneRef,
    EvaluateSpec,
    Event,
    ItemOutcome,
    JobSpec,
    Prediction,
    Result,
    ScoreSpec,
    TaskProtocol,
)
from dare.tasks import load_task

COMMAND = [sys.executable, "-m", "dare"]
WORDS = ["evaluate", "llada-tiny", "--tasks", "countdown", "--limit", "6", "--samples", "0"]
REFERENCE: BackboneRef = backbones()["llada-tiny"].ref


def evaluate(*words: str) -> tuple[int, str]:
    done = CliRunner().invoke(app, ["evaluate", *words])
    assert "Traceback" not in done.output
    return done.exit_code, " ".join(done.output.split())


def result_in(directory: Path) -> Result:
    return Result.model_validate_json((directory / "result.json").read_text())


def outcomes_in(directory: Path, task: str = "countdown") -> list[ItemOutcome]:
    lines = (directory / "items" / f"{task}.jsonl").read_text().splitlines()
    return [ItemOutcome.model_validate_json(line) for line in lines]


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untouched backbone, evaluated by our own decoder."""
    out = tmp_path_factory.mktemp("evaluation") / "out"
    code, output = evaluate(*WORDS[1:], "--samples", "1", "--out", str(out))
    assert code == 0, output
    return out


# The command


def test_an_untouched_backbone_is_evaluated_by_its_name(finished: Path) -> None:
    job, result = read_job(finished), result_in(finished)
    assert job.evaluate is not None
    assert not job.evaluate.trained
    assert result.outcome == "succeeded"
    assert {(score.metric, score.decoding, score.n) for score in result.scores} == {
        (metric, decoding, 6) for metric in ("solved", "reward") for decoding in ("greedy", "sampled")
    }
    assert len(outcomes_in(finished)) == 12


def test_a_finished_evaluation_is_shown_again_with_its_interval_its_chance_floor_and_its_flags(finished: Path) -> None:
    before = (finished / "result.json").stat().st_mtime_ns
    code, output = evaluate(*WORDS[1:], "--samples", "1", "--out", str(finished))
    assert code == 0
    assert (finished / "result.json").stat().st_mtime_ns == before
    assert "Wilson" in output
    assert "4.0%" in output  # what guessing solves
    assert "flag countdown · dare-1 · first_items_only" in output
    code, output = evaluate(*WORDS[1:], "--samples", "1", "--out", str(finished), "--json")
    assert Result.model_validate_json(output[output.index("{") :]) == result_in(finished)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["gpt"], "there is no directory gpt, and no backbone of that name; known: "),
        (["llada-tiny", "--tasks", "sudoku,chess"], "unknown task 'chess'"),
        (["llada-tiny", "--protocol", "lada"], "there is no protocol 'lada'. Did you mean `llada`?"),
        (["llada-tiny", "--protocol", "llada"], "protocol 'llada' says nothing of task 'sudoku'"),
        (
            ["llada-tiny", "--tasks", "gsm8k", "--protocol", "dare"],
            "needs the file gsm8k/test.jsonl, which was not given",
        ),
        (["sdar-tiny", "--tasks", "gsm8k", "--protocol", "llada"], "is for the families llada"),
        (["llada-tiny", "--tasks", ","], "--tasks ',' names no task; for example --tasks sudoku,countdown"),
        (["llada-tiny", "--batch-size", "0"], "--batch-size is 0; it must be at least 1"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_anything_is_written(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DARE_DATA", raising=False)
    code, output = evaluate(*words)
    assert code == 2
    assert sentence in output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.shared
def test_a_prompt_that_the_policy_cannot_read_is_refused_before_weights_load(shared: Path, tmp_path: Path) -> None:
    words = ["--tasks", "gsm8k", "--protocol", "dare", "--data", str(shared / "data"), "--out", str(tmp_path / "o")]
    code, output = evaluate("llada-tiny", *words)
    assert code == 2
    assert "the prompt cannot be read by this policy: the tokenizer has no token for" in output
    assert not (tmp_path / "o").exists()


LONG_ANSWERS = """from dataclasses import replace

from dare.tasks.sudoku import TASK as SUDOKU


def items(split, data):
    return [replace(item, gold={**item.gold, "answer": "1" * 99}) for item in SUDOKU.items(split, data)[:2]]


TASK = replace(SUDOKU, name="countdown", title="Long answers", items=items)
"""
NO_SANDBOX = """from dataclasses import replace

from dare.tasks import NotScoredError
from dare.tasks.sudoku import TASK as SUDOKU


def judge_all(answers, policies):
    raise NotScoredError("no program can be kept apart here")


TASK = replace(SUDOKU, name="countdown", title="Programs", judge_all=judge_all, kind="code")
"""


@pytest.fixture
def add_task(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], None]:
    """Put a module into the folder of tasks, before what has its name there, as long as the test lasts."""

    def add(name: str, text: str) -> None:
        folder = tmp_path_factory.mktemp("tasks")
        (folder / f"{name}.py").write_text(text)
        monkeypatch.setattr(dare.tasks, name, import_module(f"dare.tasks.{name}"))
        monkeypatch.delitem(sys.modules, f"dare.tasks.{name}")
        monkeypatch.setattr(dare.tasks, "__path__", [str(folder), *dare.tasks.__path__])

    return add


def test_strict_refuses_what_is_doubtful_and_the_result_keeps_it(
    tmp_path: Path, add_task: Callable[[str, str], None]
) -> None:
    add_task("countdown", LONG_ANSWERS)
    words = ["llada-tiny", "--tasks", "countdown", "--limit", "2", "--samples", "0", "--out", str(tmp_path / "o")]
    code, output = evaluate(*words, "--strict")
    assert code == 2
    assert "doubtful countdown (gold_does_not_fit)" in output
    assert "--strict refuses" in output
    assert not (tmp_path / "o").exists()
    code, output = evaluate(*words)
    assert code == 0
    assert "2 of 2 right answers have more tokens" in result_in(tmp_path / "o").provenance["doubtful/countdown"]


def test_a_failed_evaluation_is_tried_again_and_a_finished_one_is_not(finished: Path, tmp_path: Path) -> None:
    out = tmp_path / "o"
    words = [*WORDS[1:], "--out", str(out)]
    assert evaluate(*words)[0] == 0
    first = (out / "predictions" / "countdown.jsonl").read_bytes()
    failed = result_in(out).model_copy(update={"outcome": "failed", "cause": "disk", "scores": ()})
    (out / "result.json").write_text(failed.model_dump_json())
    assert evaluate(*words)[0] == 0
    assert result_in(out).outcome == "succeeded"
    assert (out / "predictions" / "countdown.jsonl").read_bytes() == first


def test_a_scorer_that_nobody_here_is_fails_before_anything_is_generated(tmp_path: Path) -> None:
    from dare.run import run

    protocol = TaskProtocol(
        task="countdown",
        task_version="1",
        limit=2,
        sampling=backbones()["llada-tiny"].sampling,
        further_scorers=("opencompass-0.5.4",),
    )
    spec = EvaluateSpec(protocols=(protocol,), trained=False)
    result = run(write_job(tmp_path, JobSpec(kind="evaluate", seed=0, backbone=REFERENCE, evaluate=spec)))
    assert (result.outcome, result.scores) == ("failed", ())
    assert "opencompass-0.5.4 scores what OpenCompass asks" in result.message
    assert not (tmp_path / "predictions").exists()


def test_a_task_that_cannot_be_scored_here_keeps_its_answers_and_the_others_have_scores(
    tmp_path: Path, add_task: Callable[[str, str], None]
) -> None:
    add_task("countdown", NO_SANDBOX)
    words = ["llada-tiny", "--tasks", "countdown,sudoku", "--limit", "2", "--samples", "0", "--out", str(tmp_path)]
    assert evaluate(*words)[0] == 0
    result = result_in(tmp_path)
    assert "countdown is not scored here: no program can be kept apart here." in result.message
    assert {score.task for score in result.scores} == {"sudoku"}
    assert len((tmp_path / "predictions" / "countdown.jsonl").read_text().splitlines()) == 2
    assert not (tmp_path / "items" / "countdown.jsonl").exists()


def test_programs_that_a_later_run_judges_are_generated_and_not_run(
    tmp_path: Path, add_task: Callable[[str, str], None]
) -> None:
    from dare.run import run

    add_task("countdown", NO_SANDBOX.replace("raise NotScoredError", "raise AssertionError"))
    protocols = tuple(
        TaskProtocol(task=task, task_version="1", limit=2, sampling=backbones()["llada-tiny"].sampling)
        for task in ("countdown", "sudoku")
    )
    spec = EvaluateSpec(protocols=protocols, trained=False, programs="later")
    result = run(write_job(tmp_path, JobSpec(kind="evaluate", seed=0, backbone=REFERENCE, evaluate=spec)))
    assert result.outcome == "succeeded"
    assert "the programs in the answers to countdown are judged by a run of their own" in result.message
    assert {score.task for score in result.scores} == {"sudoku"}
    assert [path.name for path in sorted((tmp_path / "items").iterdir())] == ["sudoku.jsonl"]
    assert len((tmp_path / "predictions" / "countdown.jsonl").read_text().splitlines()) == 2


def test_an_evaluation_that_judges_everything_itself_has_the_digest_that_it_always_had() -> None:
    spec = EvaluateSpec(protocols=(), trained=False)
    assert spec.digest() == EvaluateSpec(protocols=(), trained=False, programs="here").digest()
    assert "programs" not in spec.model_dump()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_trained_policy_in_several_files_is_evaluated_in_the_dtype_asked_for(dtype: str, tmp_path: Path) -> None:
    directory = write_job(tmp_path / "trained", train_job("llada"))
    shipped = backbone_directory("llada-tiny")
    shutil.copytree(shipped, directory / "model", ignore=shutil.ignore_patterns("model.safetensors", "backbone.json"))
    weights = load_file(shipped / "model.safetensors")
    names = sorted(weights)
    places = {name: f"model-{1 + (n > len(names) // 2):05}-of-00002.safetensors" for n, name in enumerate(names)}
    for file in set(places.values()):
        save_file({name: weights[name] for name in names if places[name] == file}, directory / "model" / file)
    index = {"metadata": {}, "weight_map": places}
    (directory / "model" / "model.safetensors.index.json").write_text(json.dumps(index))
    words = ["--tasks", "countdown", "--limit", "6", "--samples", "0", "--dtype", dtype]
    code, output = evaluate(str(directory), *words)
    assert code == 0, output
    result = result_in(directory / "evaluation")
    assert result.provenance["dtype"] == dtype
    assert result.scores[0].n == 6
    changed = directory / "model" / "model-00001-of-00002.safetensors"
    changed.write_bytes(changed.read_bytes()[:-1] + b"\x01")
    code, output = evaluate(str(directory), *words)
    assert code == 2
    assert "evaluates another policy" in output


def test_a_rate_is_of_what_was_done_and_not_of_what_was_there() -> None:
    rate = Rate()

    def words(at: float, step: int) -> list[str]:
        return rate.words(Event(at=at, kind="progress", step=step, of=110), left=True)

    assert words(100.0, 50) == []
    assert words(102.0, 54) == ["2 items/s", "28 s left"]
    assert words(130.0, 110) == ["2 items/s", "0 s left"]
    assert words(131.0, 3) == []  # the next task counts anew
    assert rate.words(Event(at=1.0, kind="step", step=3, of=9)) == []


# Score runs


def score_job(directory: Path, finished: Path, **changes: object) -> Path:
    spec = read_job(finished).evaluate
    assert spec is not None
    protocol = spec.protocols[0].model_copy(update=changes)
    job = JobSpec(kind="score", seed=0, backbone=REFERENCE, score=ScoreSpec(protocols=(protocol,)))
    write_job(directory, job)
    (directory / "predictions").mkdir()
    stored = (finished / "predictions" / "countdown.jsonl").read_text()
    (directory / "predictions" / "countdown.jsonl").write_text(stored)
    return directory


def test_stored_answers_score_as_they_did_when_they_were_given(finished: Path, tmp_path: Path) -> None:
    result = run_score(score_job(tmp_path, finished))
    assert result.outcome == "succeeded"
    assert result.scores == result_in(finished).scores
    assert outcomes_in(tmp_path) == outcomes_in(finished)
    assert [artifact.path for artifact in result.artifacts] == ["items/countdown.jsonl"]
    assert run_score(tmp_path) == result


@pytest.mark.full
def test_a_score_run_loads_no_model_library(finished: Path, tmp_path: Path) -> None:
    score_job(tmp_path, finished)
    code = (
        "import sys\nfrom dare.__main__ import app\n"
        f"try: app(['run', {str(tmp_path)!r}])\n"
        "except SystemExit as end: assert end.code == 0, end.code\n"
        "assert not {'torch', 'transformers', 'opencompass'} & sys.modules.keys()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert result_in(tmp_path).outcome == "succeeded"


def lines_of(directory: Path) -> list[str]:
    return (directory / "predictions" / "countdown.jsonl").read_text().splitlines()


@pytest.mark.parametrize(
    ("damage", "sentence"),
    [
        (lambda lines: lines[:-1], "lacks item 'test-0005', sample 1, and 0 more: the evaluation is not finished"),
        (lambda lines: [*lines, lines[0]], "line 13 answers item 'test-0000', sample 0 again"),
        (lambda lines: [*lines[:-1], lines[-1][:20]], "line 12 is no stored answer"),
        (lambda lines: ["\x00\x01 garbage", *lines], "line 1 is no stored answer"),
        (
            lambda lines: [lines[0].replace("test-0000", "test-9999"), *lines],
            "'test-9999', sample 0, which is not asked",
        ),
        (
            lambda lines: [lines[0].replace('prompt_sha256":"', 'prompt_sha256":"f'), *lines[1:]],
            "answers another prompt than",
        ),
    ],
)
def test_answers_that_are_not_those_of_the_protocol_get_no_number(
    damage: object, sentence: str, finished: Path, tmp_path: Path
) -> None:
    score_job(tmp_path, finished)
    damaged = damage(lines_of(tmp_path))  # type: ignore[operator]
    (tmp_path / "predictions" / "countdown.jsonl").write_text("\n".join(damaged) + "\n")
    result = run_score(tmp_path)
    assert (result.outcome, result.scores, result.artifacts) == ("failed", (), ())
    assert sentence in result.message
    assert not (tmp_path / "items").exists()


@pytest.mark.parametrize("ending", ["\u2028", "\x85", "\r", "\x0b", "\x1c"])
def test_an_answer_with_other_line_ends_stays_one_answer(ending: str, finished: Path, tmp_path: Path) -> None:
    score_job(tmp_path, finished)
    first, *rest = (Prediction.model_validate_json(line) for line in lines_of(tmp_path))
    odd = first.model_copy(update={"output": f"<answer>{ending}1+2</answer>"})
    text = "".join(one.model_dump_json() + "\n" for one in (odd, *rest))
    (tmp_path / "predictions" / "countdown.jsonl").write_text(text, encoding="utf-8")
    assert run_score(tmp_path).outcome == "succeeded"
    from dare.scoring import read_predictions

    path = tmp_path / "predictions" / "countdown.jsonl"
    assert len(read_predictions(path, {one.item: one.prompt_sha256 for one in (odd, *rest)})) == 12


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"items_sha256": "0" * 64}, "the items of countdown hash to"),
        ({"task_version": "0"}, "the protocol is for countdown 0"),
        ({"scorer": "dare-0"}, "dare-0"),
        ({"further_scorers": ("opencompass-0.5.4",)}, "a score run asks nothing"),
        ({"policies": {"mood": "kind"}}, "no policy 'mood'"),
    ],
)
def test_a_score_run_that_makes_no_sense_fails_in_a_sentence(
    changes: dict[str, object], sentence: str, finished: Path, tmp_path: Path
) -> None:
    result = run_score(score_job(tmp_path, finished, **changes))
    assert (result.outcome, result.scores) == ("failed", ())
    assert sentence in result.message


def test_edited_data_are_refused_by_the_name_of_the_file(finished: Path, tmp_path: Path) -> None:
    data = tmp_path / "data"
    (data / "gsm8k").mkdir(parents=True)
    (data / "gsm8k" / "test.jsonl").write_text('{"question": "2+2?", "answer": "#### 4"}\n')
    words = ["llada-tiny", "--tasks", "gsm8k", "--protocol", "dare", "--data", str(data), "--out", str(tmp_path / "o")]
    code, output = evaluate(*words)
    assert code == 2
    assert f"{data / 'gsm8k' / 'test.jsonl'} is not the file that task 'gsm8k' needs: its SHA-256 is" in output


def test_other_kinds_of_jobs_are_no_score_runs(tmp_path: Path) -> None:
    with pytest.raises(JobError, match="holds a job of kind 'train', no score run"):
        run_score(write_job(tmp_path, train_job("llada")))


def test_rescoring_makes_a_new_directory_and_says_which_verdicts_changed(finished: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in finished.rglob("*") if path.is_file() and "rescored" not in str(path)}
    done = CliRunner().invoke(app, ["rescore", str(finished)])
    assert done.exit_code == 0, done.output
    assert "0 of 12 verdicts differ from those of dare-1" in done.output
    assert result_in(finished / "rescored-1").scores == result_in(finished).scores
    again = CliRunner().invoke(app, ["rescore", str(finished), "--out", str(tmp_path / "again"), "--json"])
    assert again.exit_code == 0
    assert result_in(tmp_path / "again").scores == result_in(finished).scores
    assert {path: path.read_bytes() for path in before} == before
    policies = load_task("countdown").policies
    unknown = CliRunner().invoke(app, ["rescore", str(finished), "--policy", "mood=kind"])
    assert unknown.exit_code == 2
    assert "no task of" in unknown.output.replace("\n", " ")
    assert "mood" not in policies


# Processes


@pytest.fixture
def module(tmp_path: Path) -> tuple[Path, dict[str, str]]:
    """A folder for modules that a child can run, and the environment that finds them."""
    return tmp_path, {**os.environ, "PYTHONPATH": str(tmp_path)}


def gone(*processes: int, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        alive = [pid for pid in processes if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]
        if not alive:
            return True
        time.sleep(0.05)
    return False


def test_lines_of_a_child_come_whole_whatever_they_hold(module: tuple[Path, dict[str, str]]) -> None:
    folder, environment = module
    (folder / "noisy.py").write_text(
        "import sys\nsys.stdout.buffer.write(b'one\\n\\xff\\xfe\\x00 garbage\\n' + b'x' * 3_000_000 + b'\\nlast')\n"
        "print('to the log', file=sys.stderr)\n"
    )
    with Child("a child", "noisy", [], folder / "log", environment) as child:
        lines = [line for line in child.lines() if line is not None]
        assert child.wait(10) == 0
        assert child.tail() == "to the log"
    assert (lines[0], lines[-1], max(map(len, lines))) == ("one", "last", 1 << 20)


def test_a_child_that_will_not_stop_is_killed_with_what_it_started(module: tuple[Path, dict[str, str]]) -> None:
    folder, environment = module
    (folder / "stubborn.py").write_text(
        "import signal, subprocess, sys, time\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(other.pid, flush=True)\ntime.sleep(600)\n"
    )
    import dare.evaluation.child as module_

    before, module_.GRACE_SECONDS = module_.GRACE_SECONDS, 0.2
    try:
        with Child("a child", "stubborn", [], folder / "log", environment) as child:
            line = next(line for line in child.lines() if line is not None)
    finally:
        module_.GRACE_SECONDS = before
    assert child.exit_code == -signal.SIGKILL
    assert gone(int(line))


def test_a_child_ends_when_its_parent_is_killed(module: tuple[Path, dict[str, str]]) -> None:
    folder, environment = module
    (folder / "patient.py").write_text(
        "import os, subprocess, sys, time\n"
        "other = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
        "print(os.getpid(), other.pid, flush=True)\ntime.sleep(600)\n"
    )
    (folder / "parent.py").write_text(
        "import os, sys\nfrom pathlib import Path\nfrom dare.evaluation.child import Child\n"
        "child = Child('a child', 'patient', [], Path(sys.argv[1]), os.environ)\n"
        "print(next(line for line in child.lines() if line), flush=True)\nimport time\ntime.sleep(600)\n"
    )
    command = [sys.executable, "-m", "parent", str(folder / "log")]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        parent.kill()
    assert len(pids) == 2
    assert gone(*pids)


@pytest.mark.full
def test_a_server_that_cannot_load_its_weights_says_why(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"architectures": ["Nothing"]}')
    spec = EvaluateSpec(protocols=(), trained=True)
    with (
        pytest.raises(ServedError, match=r"the policy's server ended with exit code 2: .*names architecture 'Nothing'"),
        server(tmp_path, spec, tmp_path / "log", "key"),
    ):
        pass
    assert not answers("http://127.0.0.1:9")


@pytest.mark.full
def test_an_evaluation_without_disk_fails_by_that_name_and_continues_when_there_is_some(tmp_path: Path) -> None:
    out = tmp_path / "out"
    words = [*COMMAND, *WORDS, "--limit", "120", "--batch-size", "20", "--out", str(out)]

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (15_000, resource.RLIM_INFINITY))

    full = subprocess.run(words, preexec_fn=little, capture_output=True, text=True, check=False)
    assert full.returncode == 1, full.stderr
    assert "The disk is full" in full.stderr
    failed = result_in(out)
    assert (failed.cause, failed.scores) == ("disk", ())
    kept = (out / "predictions" / "countdown.jsonl").read_bytes()
    assert 10_000 < len(kept) <= 15_000
    code, output = evaluate(*WORDS[1:], "--limit", "120", "--batch-size", "20", "--out", str(out))
    assert code == 0, output
    whole = (out / "predictions" / "countdown.jsonl").read_bytes()
    assert whole.startswith(kept[: kept.rindex(b"\n") + 1])
    assert result_in(out).scores[0].n == 120


# Through OpenCompass

needs_opencompass = pytest.mark.skipif(find_spec("opencompass") is None, reason="needs the extra `evaluator`")
SERVED = [*WORDS, "--limit", "40", "--batch-size", "1", "--through", "opencompass"]


def wait_for(happens: object, process: subprocess.Popen[bytes], seconds: float = 120.0) -> None:
    deadline = time.monotonic() + seconds
    while not happens():  # type: ignore[operator]
        assert time.monotonic() < deadline, "it did not happen in time"
        assert process.poll() is None, "the evaluation ended before"
        time.sleep(0.01)


def children_of(process: subprocess.Popen[bytes]) -> dict[str, int]:
    """Process ids of the server and of OpenCompass."""
    found = {}
    for child in psutil.Process(process.pid).children():
        words = child.cmdline()
        found |= {"server": child.pid} if "serve" in words else {}
        found |= {"opencompass": child.pid} if "dare.opencompass" in words else {}
    return found


@pytest.mark.full
@needs_opencompass
def test_an_evaluation_through_opencompass_survives_every_death(tmp_path: Path) -> None:
    """Killed itself, then its server, then its evaluator: no number before the end, and nothing is asked twice."""
    out, stored = tmp_path / "out", tmp_path / "out" / "predictions" / "countdown.jsonl"
    words = [*COMMAND, *SERVED, "--out", str(out)]

    def answered() -> int:
        return len(stored.read_bytes().splitlines()) if stored.is_file() else 0

    with (tmp_path / "log").open("ab") as log:
        killed = subprocess.Popen(words, stderr=log)
        wait_for(lambda: answered() >= 5, killed)
        pids = children_of(killed)
        assert set(pids) == {"server", "opencompass"}
        killed.kill()
        killed.wait()
        assert gone(*pids.values())
        assert not (out / "result.json").exists()
        first = stored.read_bytes()

        served = subprocess.Popen(words, stderr=log)
        before = answered()
        wait_for(lambda: answered() >= before + 5, served)
        pids = children_of(served)
        os.kill(pids["server"], signal.SIGKILL)
        assert served.wait(60) == 1
        assert gone(*pids.values())
        failed = result_in(out)
        assert (failed.outcome, failed.cause, failed.scores) == ("failed", "internal", ())
        assert "the policy's server ended with exit code -9" in failed.message
        assert "what was answered is kept" in failed.message

        interrupted = subprocess.Popen(words, stderr=log)
        wait_for(lambda: "opencompass" in children_of(interrupted), interrupted)
        pids = children_of(interrupted)
        interrupted.send_signal(signal.SIGTERM)
        assert interrupted.wait(30) == 130
        assert gone(*pids.values())
        assert not (out / "result.json").exists()

        last = subprocess.run(words, stderr=log, check=False)
    assert last.returncode == 0, (tmp_path / "log").read_text()
    assert stored.read_bytes().startswith(first[: first.rindex(b"\n") + 1])
    items = [Prediction.model_validate_json(line).item for line in stored.read_text().splitlines()]
    assert sorted(items) == [f"test-{number:04}" for number in range(40)]
    result = result_in(out)
    solved = {score.scorer: score for score in result.scores if score.metric == "solved"}
    assert set(solved) == {"dare-1", "opencompass-0.5.4"}
    assert result.provenance["opencompass"] == "0.5.4"
    by = {name: [one.score for one in outcomes_in(out) if one.scorer == name] for name in solved}
    assert len(by["dare-1"]) == len(by["opencompass-0.5.4"]) == 40

    alone = tmp_path / "alone"
    code, output = evaluate(*WORDS[1:], "--limit", "40", "--out", str(alone))
    assert code == 0, output
    ours, theirs = ({one.item: one for one in outcomes_in(d) if one.scorer == "dare-1"} for d in (alone, out))
    assert ours == theirs
    events = [Event.model_validate_json(line) for line in (out / "events.jsonl").read_text().split("\n") if line]
    assert (events[-2].kind, [e.step for e in events if e.kind == "progress"][-1]) != ("progress", None)


def test_what_opencompass_left_behind_is_not_believed_when_it_is_garbage(tmp_path: Path) -> None:
    from dare.evaluation import served
    from dare.opencompass.job import TaskDone

    protocol = TaskProtocol(
        task="countdown",
        task_version="1",
        sampling=backbones()["llada-tiny"].sampling,
        further_scorers=("opencompass-0.5.4",),
    )
    told = TaskDone(
        task="countdown", config=None, status="scored", kind="generate", evaluator="", postprocessor=None,
        prompt_hash="", wall_clock=False, items=2,
    )  # fmt: skip
    known = frozenset({("a", 0), ("b", 0)})
    path = tmp_path / "opencompass" / "items" / "countdown.jsonl"
    path.parent.mkdir(parents=True)
    good = [
        ItemOutcome(
            item=item, sample=0, score=1, reward=1, status="ok", answer=None, scorer="opencompass-0.5.4"
        ).model_dump_json()
        for item in ("a", "b")
    ]
    for lines, sentence in (
        (None, "does not hold what OpenCompass says"),
        (["\x00garbage", good[0]], "does not hold what OpenCompass says"),
        (good[:1], "differ in item 'b', sample 0"),
        ([*good, good[0]], "differ in an item twice"),
        ([good[0], good[1].replace("opencompass-0.5.4", "dare-1")], "is by 'dare-1'"),
    ):
        if lines is not None:
            path.write_text("\n".join(lines) + "\n")
        with pytest.raises(ServedError, match=sentence) as caught:
            served._outcomes(tmp_path, protocol, told, known)
        assert caught.value.cause == "scoring"
    path.write_text("\n".join(good) + "\n")
    assert len(served._outcomes(tmp_path, protocol, told, known)) == 2
    not_scored = told.model_copy(update={"status": "not_scored", "why": "no sandbox"})
    assert served._outcomes(tmp_path, protocol, not_scored, known) == []


def test_a_setting_that_is_given_as_nothing_chooses_no_selector() -> None:
    """A whole SamplingConfig is sent to the server, `threshold: null` included."""
    policy = open_policy("llada-tiny", with_weights=False)
    whole = dict(policy.sampling.model_copy(update={"steps_per_block": 10}))
    assert dict(policy.configure(whole)) == whole
    del whole["selector"]
    assert policy.configure(whole).selector == "schedule"
    assert policy.configure({**whole, "threshold": 0.9}).selector == "dynamic"
