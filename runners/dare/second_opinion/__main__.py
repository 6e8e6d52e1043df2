"""The child of a second opinion: `python -m dare.second_opinion JOB.json FIRST`, one line of JSON for each answer.

lm-evaluation-harness is used as released: the filters and the metric of its gsm8k.yaml, and the scoring functions of
its minerva_math and hendrycks_math. Its data sets are not loaded, and no connection can be opened.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any, TextIO

import yaml

log = logging.getLogger(__name__)
Judge = Callable[[Mapping[str, str]], dict[str, bool]]
ANTLR = "antlr4-python3-runtime"
ANTLR_ASKED = "4.11"
"""The only version that minerva_math accepts. Later runtimes read the same serialised grammar, see `minerva`."""


def refuse_network(event: str, _: tuple[Any, ...]) -> None:
    """An audit hook: whatever would leave this process raises."""
    if event in ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto"):
        raise PermissionError(f"a second opinion needs no network, and asked for one: {event}")


def gsm8k() -> Judge:
    """The two filters of the harness's task and its exact match, with the settings of its own file."""
    instance_of = import_module("lm_eval.api.instance").Instance
    exact_match = import_module("lm_eval.api.metrics").exact_match_fn
    filters_of = import_module("lm_eval.filters").build_filter_ensemble
    config = yaml.safe_load((tasks_folder() / "gsm8k" / "gsm8k.yaml").read_text(encoding="utf-8"))
    [metric] = config["metric_list"]
    settings = {k: v for k, v in metric.items() if k not in ("metric", "aggregation", "higher_is_better")}
    filters = [
        filters_of(
            one["name"],
            [(step["function"], {k: v for k, v in step.items() if k != "function"}) for step in one["filter"]],
        )
        for one in config["filter_list"]
    ]

    def judge(row: Mapping[str, str]) -> dict[str, bool]:
        instance = instance_of("generate_until", {}, (), 0, resps=[row["output"]])
        for one in filters:
            one.apply([instance])
        gold = f"#### {row['gold']}"  # as published, of which the metric's own expressions leave the number
        return {
            f"gsm8k {name}": bool(exact_match(predictions=[read], references=[gold], **settings)["exact_match"])
            for name, read in instance.filtered_resps.items()
        }

    return judge


def mathematics() -> Judge:
    """Both of the harness's scorers of MATH: minerva's two metrics and Hendrycks's."""
    theirs, strings = minerva(), module("hendrycks_math")

    def judge(row: Mapping[str, str]) -> dict[str, bool]:
        solution = row["solution"] or rf"\boxed{{{row['gold']}}}"
        gold = theirs.normalize_final_answer(theirs.remove_boxed(theirs.last_boxed_only_string(solution)))
        found = theirs.process_results({"solution": solution, "answer": gold}, [row["output"]])
        plain = strings.process_results({"solution": solution}, [row["output"]])
        return {
            "minerva_math math_verify": bool(found["math_verify"]),
            "minerva_math exact_match": bool(found["exact_match"]),
            "hendrycks_math exact_match": bool(plain["exact_match"]),
        }

    return judge


def minerva() -> ModuleType:
    """Its module, which asks for one version of a parser's runtime that other evaluators do not have.

    The runtime that is here is shown to it under that number, and has to prove that it reads fractions and roots.
    """
    real = importlib.metadata.version
    if not real(ANTLR).startswith(ANTLR_ASKED):

        def shown(distribution_name: str) -> str:
            return ANTLR_ASKED if distribution_name == ANTLR else real(distribution_name)

        importlib.metadata.version = shown
    found = module("minerva_math")
    proofs = [(r"\frac{1}{2}", "0.5", True), (r"\sqrt{8}", r"2\sqrt{2}", True), (r"\frac{1}{3}", "0.5", False)]
    for first, second, equal in proofs:
        if found.is_equiv(first, second) != equal:
            raise RuntimeError(f"{ANTLR} {real(ANTLR)} does not read {first} and {second}: install {ANTLR_ASKED}")
    return found


def module(task: str) -> ModuleType:
    """The scoring functions of one of the harness's tasks, from the file beside its configuration."""
    path = tasks_folder() / task / "utils.py"
    spec = importlib.util.spec_from_file_location(f"lm_eval_{task}", path)
    if spec is None or spec.loader is None:
        raise RuntimeError(f"lm-evaluation-harness has no {path}")
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def tasks_folder() -> Path:
    """Where the harness keeps its tasks."""
    spec = importlib.util.find_spec("lm_eval")
    if spec is None or spec.origin is None:
        raise RuntimeError("lm-evaluation-harness is not installed here")
    return Path(spec.origin).parent / "tasks"


def main(job: Path, first: int, lines: TextIO) -> None:
    """Judge the rows from `first` on. A row on which the harness raises has no verdict."""
    asked = json.loads(job.read_text(encoding="utf-8"))
    judge = {"gsm8k": gsm8k, "math": mathematics}[asked["kind"]]()
    names = ("lm_eval",) if asked["kind"] == "gsm8k" else ("lm_eval", "math-verify", "sympy", ANTLR)
    versions = {name: REAL_VERSION(name) for name in names}
    print(json.dumps({"versions": versions}), file=lines, flush=True)
    for row in asked["rows"][first:]:
        verdict: dict[str, bool] | None = None
        try:
            verdict = judge(row)
        except Exception:  # whatever their code raises is no verdict, and says nothing of the next row
            log.exception("no verdict")
        print(json.dumps({"verdict": verdict}), file=lines, flush=True)


REAL_VERSION = importlib.metadata.version

if __name__ == "__main__":
    sys.addaudithook(refuse_network)
    # Their libraries print: our lines go to the real output, everything else to the log.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as ours:
        os.dup2(2, 1)
        main(Path(sys.argv[1]), int(sys.argv[2]), ours)
