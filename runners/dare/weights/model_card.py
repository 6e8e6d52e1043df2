"""The model card of a trained policy: `README.md` with the hub's front matter, written from the run's own records.

Everything that it says is read from job, result and catalog. What they do not say is "not stated", never guessed.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import yaml

import dare
from dare.catalog import BackboneRecord, UnknownAlgorithmError, backbones, load_source
from dare.source import AlgorithmSource, read_source
from dare.spec import JobSpec, Score, TrainSpec, Usage
from dare.weights.hashes import file_sha256

NAME = "README.md"
NOT_STATED = "not stated"
Form = Literal["full", "merged", "adapter"]
FORMS: Mapping[Form, str] = {
    "full": "all weights, trained",
    "merged": "all weights, with the trained adapters merged into them",
    "adapter": "the trained adapters alone, in peft's format; they need the base",
}
_IDENTIFIER = re.compile(r"[a-z0-9][a-z0-9.-]*")


@dataclass(frozen=True)
class Trained:
    """A training run, as far as a card speaks of it."""

    job: JobSpec
    usage: Usage
    provenance: Mapping[str, str]
    form: Form
    entry: bytes | None = None
    """The submitted file, where the algorithm is one."""
    scores: Sequence[Score] = ()
    limited: bool = False
    """The scores are of the first items only: a quick look."""

    @property
    def train(self) -> TrainSpec:
        """The training part of the job."""
        assert self.job.train is not None
        return self.job.train

    @property
    def algorithm(self) -> AlgorithmSource | None:
        """The algorithm as its file describes it; None where the file cannot be read as one."""
        if self.train.algorithm.source == "entry":
            return read_source(self.entry, self.train.algorithm.name).algorithm if self.entry is not None else None
        try:
            return load_source(self.train.algorithm.name)
        except UnknownAlgorithmError:
            return None

    @property
    def base(self) -> BackboneRecord | None:
        """The backbone's record, where the catalog has the one that the job names."""
        record = backbones().get(self.job.backbone.name)
        return record if record is not None and record.ref == self.job.backbone else None


def write_card(folder: Path, trained: Trained, files: Mapping[str, str]) -> None:
    """Write the card of `files` (name to SHA-256) beside them."""
    (folder / NAME).write_text(card(trained, files), encoding="utf-8")


def weight_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file of weights, by name."""
    return {file.name: file_sha256(file) for file in sorted(folder.glob("*.safetensors"))}


def card(trained: Trained, files: Mapping[str, str]) -> str:
    """The whole text."""
    front = yaml.safe_dump(front_matter(trained), sort_keys=False, allow_unicode=True)
    method, backbone = trained.train.algorithm.name, trained.job.backbone.name
    parts = [
        f"---\n{front}---",
        f"# {method} on {backbone}",
        f"Trained with DARE {dare.__version__}. The files here are {FORMS[trained.form]}.",
        _table("Base", _base(trained)),
        _table("Data", {"source": trained.train.data, "manifest": trained.provenance.get("data_manifest", NOT_STATED)}),
        _method(trained),
        _table("Budget", _budget(trained)),
        _scores(trained),
        _table("Files", {name: f"sha256 {digest}" for name, digest in sorted(files.items())}),
        _table("Software", dict(trained.provenance)),
        _again(trained),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(trained: Trained) -> dict[str, Any]:
    """What the hub reads. A licence that is no identifier of the hub is `other`, with its name."""
    train, base = trained.train, trained.base
    licence = licence_of(base)
    known = {} if licence is None else {"license": licence.lower()}
    if licence is not None and not _IDENTIFIER.fullmatch(licence.lower()):
        known = {"license": "other", "license_name": licence}
    hub = [train.data.removeprefix("hub:").partition("@")[0]] if train.data.startswith("hub:") else []
    return {
        **known,
        "base_model": base.origin if base is not None and base.origin else trained.job.backbone.name,
        "base_model_relation": "adapter" if trained.form == "adapter" else "finetune",
        "library_name": "peft" if trained.form == "adapter" else "transformers",
        "tags": ["dare", "diffusion-language-model", trained.job.backbone.family, train.algorithm.name],
        **({"datasets": hub} if hub else {}),
    }


def licence_of(base: BackboneRecord | None) -> str | None:
    """The licence of the base; None where nobody stated one."""
    return None if base is None or base.licence.lower() in ("", "unknown", "none") else base.licence


def _base(trained: Trained) -> dict[str, object]:
    ref, record = trained.job.backbone, trained.base
    return {
        "name": ref.name,
        "origin": (record.origin if record is not None else None) or NOT_STATED,
        "revision": ref.revision,
        "family": ref.family,
        "licence": licence_of(record) or NOT_STATED,
        "weights sha256": ref.weights_sha256,
        "tokenizer sha256": ref.tokenizer_sha256,
    }


def _method(trained: Trained) -> str:
    algorithm, spec = trained.algorithm, trained.train.algorithm
    values = algorithm.settled(spec.hyperparameters) if algorithm is not None else spec.hyperparameters
    rows: dict[str, object] = {"algorithm": f"{spec.name} ({'built in' if spec.source == 'builtin' else 'a file'})"}
    rows["source sha256"] = algorithm.sha256 if algorithm is not None else NOT_STATED
    rows |= values
    said = f"{algorithm.summary}\n\n" if algorithm is not None and algorithm.summary else ""
    parts = [f"## Method\n\n{said}{_rows(rows)}"]
    parts.append(
        _table("Training settings", {**trained.train.settings.model_dump(mode="json"), "seed": trained.job.seed})
    )
    parts.append(_table("Decoding of rollouts", trained.train.sampling.model_dump(mode="json")))
    return "\n\n".join(parts)


def _budget(trained: Trained) -> dict[str, object]:
    """The limits, and what was used of them. The job names no track: its rules are these values."""
    limits, used = trained.train.budget, trained.usage
    return {
        "optimiser batches, at most": limits.optimiser_steps,
        "gradient forwards per completion, at most": limits.gradient_forwards or "no limit",
        "optimiser steps made": used.optimiser_steps,
        "gradient forwards per completion made": f"{used.gradient_forwards:g}",
        "forwards of one sequence, sampling included": f"{used.forwards:g}",
        "tokens decoded": used.tokens_decoded,
    }


def _scores(trained: Trained) -> str:
    if not trained.scores:
        return "## Scores\n\nNot evaluated when this card was written."
    lines = ["| task | metric | decoding | value | standard error over items | items | scorer |", "|" + "---|" * 7]
    for score in trained.scores:
        error = NOT_STATED if score.standard_error is None else f"{score.standard_error:.4f}"
        cells = (score.task, score.metric, score.decoding, f"{score.value:.4f}", error, str(score.n), score.scorer)
        lines.append("| " + " | ".join(cells) + " |")
    note = "\n\nOf the first items of each task only: a quick look, no score to compare." if trained.limited else ""
    return "## Scores\n\nOne seed.\n\n" + "\n".join(lines) + note


def _again(trained: Trained) -> str:
    name, ref = trained.train.algorithm.name, trained.job.backbone
    if trained.form == "adapter":
        load = f"dare backbone merge {ref.name} FOLDER MERGED\ndare backbone add MERGED --name my-{name}"
    else:
        load = f"dare backbone add FOLDER --name my-{name}"
    needs = "`job.json`"
    needs += ", the file of the algorithm as `entry/algorithm.py`" if trained.train.algorithm.source == "entry" else ""
    needs += f", `{trained.train.data.removeprefix('file:')}`" if trained.train.data.startswith("file:") else ""
    return (
        f"## Load it\n\n```\n{load}\ndare generate PROMPT --backbone my-{name}\n```\n\n"
        f"## Run it again\n\nPut {needs} into a folder and give it to `python -m dare run FOLDER`. "
        f"The same machine and versions give the same weights.\n\n```json\n{trained.job.model_dump_json(indent=1)}\n```"
    )


def _table(title: str, rows: Mapping[str, object]) -> str:
    return f"## {title}\n\n{_rows(rows)}"


def _rows(rows: Mapping[str, object]) -> str:
    return "\n".join(["| | |", "|---|---|", *(f"| {name} | {_cell(value)} |" for name, value in rows.items())])


def _cell(value: object) -> str:
    return str(value).replace("|", "\\|").replace("\n", " ")
