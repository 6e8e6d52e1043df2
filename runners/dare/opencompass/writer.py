"""Prompts as OpenCompass writes them, each under the item of ours that it asks, before anything is asked."""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import opencompass
from mmengine.config import Config, ConfigDict
from opencompass.tasks import OpenICLInferTask
from opencompass.utils import get_prompt_hash

from dare.opencompass.alignment import align
from dare.opencompass.asked import Asked, Part
from dare.opencompass.configs import StockConfig
from dare.opencompass.datasets import ItemsDataset, write_dataset
from dare.opencompass.evaluators import TaskEvaluator
from dare.opencompass.job import config_of
from dare.opencompass.prompts import splits
from dare.opencompass.recording import Recorder
from dare.scoring import EvaluationError, prompt_of, prompt_sha256
from dare.spec import TaskProtocol
from dare.tasks import Item, MissingDataError, Task, load_task, read_data_bytes

MODEL = "policy"
DATASETS = Path(opencompass.__file__).parent / "configs" / "datasets"


class Writer:
    """Has OpenCompass write the prompts of one task after the other."""

    def __init__(self, data: Path | None, scratch: Path) -> None:
        self._data, self._scratch = data, scratch

    def prepare(self, protocol: TaskProtocol) -> Asked:
        """Everything that the protocol asks; every mismatch is an error that names the item or the file."""
        task, stock = load_task(protocol.task), config_of(protocol)
        if task.kind == "likelihood":
            _check_likelihood(protocol, stock)
        if stock is not None and protocol.prefill:
            raise EvaluationError(f"OpenCompass's {stock.name} begins no answer, and the protocol has a prefill")
        for file in task.files:
            read_data_bytes(task.name, self._data, file.path, file.sha256)
        for name in () if stock is None else stock.needs:
            if self._data is None or not (self._data / name).is_file():
                raise MissingDataError(f"OpenCompass's {protocol.prompt} needs {name}, which is not in {self._data}")
        items = task.items(protocol.split, self._data)
        wanted = {item.id for item in items[: protocol.limit]}
        if stock is None:
            return self._own(protocol, task, items[: protocol.limit])
        configs = self._configs(stock, protocol.task)
        found, parts = set(), []
        for config in configs:
            subject = None if stock.subject is None else config[stock.subject]
            of_subject = [item for item in items if subject in (None, item.row.get("subject"))]
            if not wanted & {item.id for item in of_subject}:
                continue
            part = self._ask_opencompass(protocol, stock, config, of_subject, wanted)
            parts.append(part)
            found |= {item.id for item in part.items}
        missing = [item.id for item in items if item.id in wanted and item.id not in found]
        if missing and not stock.drops:
            raise MissingDataError(f"OpenCompass's {stock.name} has no dataset with item {missing[0]!r} of {task.name}")
        prompt_hash = get_prompt_hash(copy.deepcopy(configs))
        return Asked(protocol, task, stock, parts, missing, prompt_hash)

    def _own(self, protocol: TaskProtocol, task: Task, items: Sequence[Item]) -> Asked:
        """The task writes the prompts; OpenCompass is given them as a dataset, and its judge as an evaluator."""
        prompts = [prompt_of(protocol, task, item, self._data) for item in items]
        path = self._scratch / "items" / f"{task.name}.jsonl"
        write_dataset(path, list(items))
        config = ConfigDict(
            abbr=task.name,
            type=ItemsDataset,
            path=str(path),
            reader_cfg={"input_columns": ["prompt"], "output_column": "reference"},
            eval_cfg={"evaluator": {"type": TaskEvaluator, "task": task.name, "policies": dict(protocol.policies)}},
        )
        digest = hashlib.sha256("\n".join(map(prompt_sha256, prompts)).encode()).hexdigest()
        return Asked(protocol, task, None, [Part(config, items, prompts)], (), digest)

    def _configs(self, stock: StockConfig, task: str) -> list[ConfigDict]:
        """OpenCompass's own list, with the place of the data made absolute."""
        assert self._data is not None
        loaded = Config.fromfile(str(DATASETS / f"{stock.name}.py"))[stock.variable]
        configs = [copy.deepcopy(one) for one in loaded if stock.only in (None, one.get("name"))]
        for config in configs:
            config["path"] = str(self._data / stock.path)
            for name, value in stock.tasks[task].items():
                config[name] = str(self._data / value) if name == "path" else value
        return configs

    def _ask_opencompass(
        self, protocol: TaskProtocol, stock: StockConfig, config: ConfigDict, items: Sequence[Item], wanted: set[str]
    ) -> Part:
        recorder = Recorder(chat=protocol.template == "chat")
        folder = self._scratch / protocol.task / "prompts"
        rows = infer(config, recorder, folder)
        aligned = align(stock.benchmark, rows, items, drops=stock.drops)
        kept = sum(item.id in wanted for item in aligned)  # a limit keeps the first ones
        keys = [row["task_id"] for row in rows[:kept]] if stock.benchmark == "humaneval" else None
        if stock.kind == "generate":
            return Part(config, aligned[:kept], recorder.prompts[:kept], keys=keys)
        labels = len(recorder.texts) // len(rows)
        texts = [recorder.texts[row :: len(rows)] for row in range(kept)]
        assert all(len(one) == labels for one in texts)
        return Part(config, aligned[:kept], [splits(one)[0] for one in texts], texts)


def infer(config: ConfigDict, recorder: Recorder, folder: Path) -> list[Mapping[str, Any]]:
    """Let OpenCompass write its prompts, and return the rows that it wrote them from."""
    task = OpenICLInferTask(task_of(config, folder))
    task.run(cur_model=recorder, cur_model_abbr=MODEL)
    return list(task.dataset.test)


def model_of() -> ConfigDict:
    """What OpenCompass is told of the model; its name is that of the folders it writes into."""
    return ConfigDict(type=Recorder, abbr=MODEL, path=MODEL, batch_size=256, max_out_len=1, run_cfg={"num_gpus": 0})


def task_of(config: ConfigDict, folder: Path) -> ConfigDict:
    """A task of one dataset. A copy: the task puts the model into what it is given."""
    return ConfigDict(
        models=[model_of()],
        datasets=[[copy.deepcopy(config)]],
        work_dir=str(folder),
        eval={"runner": {"task": {"dump_details": True}}},
    )


def _check_likelihood(protocol: TaskProtocol, stock: StockConfig | None) -> None:
    if protocol.mc_samples is None:
        raise EvaluationError(f"task {protocol.task} is scored by likelihood, and the protocol has no mc_samples")
    if protocol.samples:
        raise EvaluationError(
            f"task {protocol.task} is scored by likelihood, and nothing is sampled: samples is {protocol.samples}"
        )
    if stock is not None and protocol.template != "none":
        raise EvaluationError(
            f"OpenCompass's {stock.name} compares plain texts: the protocol of {protocol.task} needs template 'none'"
        )
