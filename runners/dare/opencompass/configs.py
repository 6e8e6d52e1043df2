"""The allow-list: which of OpenCompass's dataset configurations can be asked for, and which items are theirs.

A configuration is Python code, and a `type` in it imports anything; so a job names one of these and nothing else.
Data lies where OpenCompass 0.5.4 expects it below its own `data` folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

PREFIX = "opencompass:"
"""Before the name of a configuration, in the `prompt` of a protocol."""


class UnknownConfigError(ValueError):
    """The name is not in the allow-list, or its rows are not the task's items."""


@dataclass(frozen=True)
class StockConfig:
    """One configuration of OpenCompass."""

    name: str
    """Path below `opencompass/configs/datasets`, without `.py`."""
    variable: str
    """Where the list of datasets stands in it."""
    tasks: Mapping[str, Mapping[str, Any]]
    """Tasks of ours whose items its rows are, with what each changes in every dataset of the list."""
    path: str
    """The data, below the data folder; made absolute, so that nothing is looked for or downloaded elsewhere."""
    kind: Literal["generate", "likelihood"] = "generate"
    runs_code: bool = False
    """Its evaluator executes what the model wrote."""
    wall_clock: bool = False
    """Its evaluator has a time limit, so that verdicts can depend on the machine's load."""
    subject: str | None = None
    """The key of a dataset that names the subject of its items, of a list with a dataset for each."""
    only: str | None = None
    """The one dataset of the list, by `name`, whose rows the task's items are."""
    drops: bool = False
    """OpenCompass leaves items out, such as questions without four options."""
    whole: bool = False
    """Its evaluator needs an answer to every item."""
    needs: tuple[str, ...] = field(default=())
    """Files below the data folder that it reads and that are no file of the task, to be looked for before it starts."""

    @property
    def benchmark(self) -> str:
        """The folder of the configuration, which says what its rows look like."""
        return self.name.split("/")[0]

    def check_task(self, task: str) -> None:
        """UnknownConfigError when this configuration asks other items."""
        if task not in self.tasks:
            raise UnknownConfigError(
                f"OpenCompass's {self.name} does not ask the items of task {task!r}, but of {', '.join(self.tasks)}"
            )


def _stock(
    name: str, variable: str, tasks: str | Mapping[str, Mapping[str, Any]], path: str, **more: Any
) -> StockConfig:
    return StockConfig(name, variable, {tasks: {}} if isinstance(tasks, str) else tasks, path, **more)


_MATH = {"math": {}, "math_500": {"file_name": "test_prm800k_500.json"}}
_ARC = {"arc_c": {"path": "ARC/ARC-c/ARC-Challenge-Test.jsonl"}}
_ARC_LIKELIHOOD = {"arc_c_ppl": _ARC["arc_c"]}
_GSM8K: dict[str, Any] = {"path": "gsm8k", "needs": ("gsm8k/train.jsonl",)}
_HUMANEVAL: dict[str, Any] = {
    "path": "humaneval/human-eval-v2-20210705.jsonl", "runs_code": True, "wall_clock": True, "whole": True
}  # fmt: skip
_MBPP: dict[str, Any] = {"path": "mbpp/mbpp.jsonl", "runs_code": True, "wall_clock": True}
_LISTED = (
    *(
        _stock(f"gsm8k/{name}", "gsm8k_datasets", "gsm8k", **_GSM8K)
        for name in ("gsm8k_gen", "gsm8k_gen_1d7fe4", "gsm8k_0shot_v2_gen_17d799")
    ),
    _stock("math/math_0shot_gen_11c4b5", "math_datasets", _MATH, "math"),
    _stock("math/math_gen", "math_datasets", _MATH, "math", wall_clock=True),
    _stock("math/math_prm800k_500_0shot_cot_gen", "math_datasets", "math_500", "math"),
    _stock("math/math_prm800k_500_0shot_cot_gen_11c4b5", "math_datasets", "math_500", "math", wall_clock=True),
    *(
        _stock(f"mmlu/{name}", "mmlu_datasets", "mmlu", "mmlu", subject="name")
        for name in ("mmlu_gen", "mmlu_gen_a484b3", "mmlu_gen_4d595a")
    ),
    _stock("mmlu/mmlu_ppl", "mmlu_datasets", "mmlu_ppl", "mmlu", kind="likelihood", subject="name"),
    *(
        _stock(f"mmlu_pro/{name}", "mmlu_pro_datasets", "mmlu_pro", "mmlu_pro", subject="category")
        for name in ("mmlu_pro_gen", "mmlu_pro_0shot_cot_gen_08c1de", "mmlu_pro_gen_cdbebf")
    ),
    _stock("ARC_c/ARC_c_gen", "ARC_c_datasets", _ARC, "ARC", drops=True),
    _stock("ARC_c/ARC_c_gen_1e0de5", "ARC_c_datasets", _ARC, "ARC", drops=True),
    _stock("ARC_c/ARC_c_ppl", "ARC_c_datasets", _ARC_LIKELIHOOD, "ARC", kind="likelihood", drops=True),
    _stock("hellaswag/hellaswag_gen_6faab5", "hellaswag_datasets", "hellaswag", "hellaswag/hellaswag.jsonl"),
    _stock(
        "hellaswag/hellaswag_ppl",
        "hellaswag_datasets",
        "hellaswag_ppl",
        "hellaswag/hellaswag.jsonl",
        kind="likelihood",
    ),
    *(
        _stock(f"gpqa/{name}", "gpqa_datasets", "gpqa", "gpqa")
        for name in ("gpqa_gen", "gpqa_openai_simple_evals_gen_5aeece", "gpqa_gen_4baadb")
    ),
    *(
        _stock(f"aime2024/{name}", "aime2024_datasets", "aime24", "aime.jsonl", wall_clock=True)
        for name in ("aime2024_gen", "aime2024_gen_17d799")
    ),
    _stock(
        "OlympiadBench/OlympiadBench_0shot_gen_be8b13",
        "olympiadbench_datasets",
        "olympiad_bench",
        "OlympiadBench",
        only="OE_TO_maths_en_COMP",
    ),
    _stock("IFEval/IFEval_gen", "ifeval_datasets", "ifeval", "ifeval/input_data.jsonl"),
    _stock("humaneval/humaneval_gen", "humaneval_datasets", "humaneval", **_HUMANEVAL),
    _stock("humaneval/humaneval_gen_8e312c", "humaneval_datasets", "humaneval", **_HUMANEVAL),
    _stock("mbpp/mbpp_gen", "mbpp_datasets", "mbpp", **_MBPP),
    _stock("mbpp/mbpp_gen_830460", "mbpp_datasets", "mbpp", **_MBPP),
)
CONFIGS: Mapping[str, StockConfig] = {stock.name: stock for stock in _LISTED}
"""By name."""


def stock_config(name: str) -> StockConfig:
    """UnknownConfigError for a name that is not in the allow-list."""
    if name not in CONFIGS:
        raise UnknownConfigError(f"unknown configuration of OpenCompass {name!r}; known: {', '.join(CONFIGS)}")
    return CONFIGS[name]
