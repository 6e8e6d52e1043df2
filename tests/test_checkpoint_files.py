"""Weights survive being written, in whatever shards and dtype; files that are not whole are refused in a sentence."""

from __future__ import annotations

import json
import math
import os
import re
import struct
from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from tiny import ARCHITECTURES
from torch import Tensor

from dare.allocations import peak_of
from dare.data.corpus import alphabet
from dare.families import checkpoint_files
from dare.families.checkpoint_files import (
    CheckpointError,
    check_tensors,
    load_model,
    meta_model,
    read_config,
    save_model,
    weight_files,
)
from dare.family import load_family, model_class_of
from dare.seeds import generator_for
from dare.weights.headers import BYTES, INDEX, WEIGHTS, read_header, stored_weights

models = pytest.mark.parametrize("architecture", ARCHITECTURES)
SHARD = 300_000
EXPERT = re.compile(r"(.*\.experts\.)(\d+)\.(gate_proj|up_proj|down_proj)\.weight")


def tiny_model(architecture: str = "SDARForCausalLM", seed: int = 0) -> Any:
    """Every number drawn, buffers included."""
    generator = generator_for(seed, "files", architecture)
    model = load_family(ARCHITECTURES[architecture]).tiny(alphabet(), generator, architecture).model
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.normal_(generator=generator)
    return model


def same(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> bool:
    return ours.keys() == theirs.keys() and all(
        ours[name].dtype == theirs[name].dtype and torch.equal(ours[name], theirs[name]) for name in ours
    )


def cast(model: Any, dtype: torch.dtype) -> dict[str, Tensor]:
    """What a file or a model of that dtype must hold: buffers stay as they are."""
    buffers = {name for name, _ in model.named_buffers()}
    return {name: t if name in buffers else t.to(dtype) for name, t in model.state_dict().items()}


@models
@pytest.mark.parametrize("most", [10**9, SHARD], ids=["one file", "shards"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_model_comes_back_from_its_files(architecture: str, most: int, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    save_model(model, tmp_path, dtype, max_shard_bytes=most)
    wanted = cast(model, dtype)
    written: dict[str, Tensor] = {}
    for file in weight_files(tmp_path):
        written |= load_file(file)
    assert same(written, wanted)
    assert same(dict(load_model(type(model), tmp_path, dtype).state_dict()), wanted)
    assert not list(tmp_path.glob(".*"))
    assert read_config(tmp_path)["architectures"] == [type(model).__name__]
    stored = stored_weights(tmp_path)
    assert stored.bytes == sum(tensor.nbytes for tensor in wanted.values())
    if most == SHARD:
        assert len(stored.files) > 1
        assert stored.stated_bytes == stored.bytes
        for file in stored.files:
            tensors = read_header(file).values()
            assert sum(tensor.bytes for tensor in tensors) <= SHARD or len(tensors) == 1
    else:
        assert [file.name for file in stored.files] == [WEIGHTS]


@models
def test_a_save_replaces_the_files_of_the_save_before(architecture: str, tmp_path: Path) -> None:
    for seed, most in ((0, SHARD), (1, 10**9), (2, SHARD // 2), (3, SHARD)):
        model = tiny_model(architecture, seed)
        save_model(model, tmp_path, max_shard_bytes=most)
        assert same(dict(load_model(type(model), tmp_path, torch.float32).state_dict()), dict(model.state_dict()))
        files = {file.name for file in tmp_path.iterdir()}
        index = {INDEX} if most != 10**9 else set()
        assert files == {"config.json", *(file.name for file in weight_files(tmp_path))} | index


class Killed(BaseException):
    """The process ended here."""


@pytest.mark.parametrize(("before", "after"), [(None, SHARD), (10**9, SHARD), (SHARD, 10**9)])
def test_a_killed_save_leaves_the_old_checkpoint_or_nothing_that_loads(
    before: int | None, after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old, new = tiny_model(seed=1), tiny_model(seed=2)

    def stop_at(place: int) -> bool:
        """Save into a folder, killed at the file operation `place`; whether it got that far."""
        folder = tmp_path / str(place)
        if before is not None:
            save_model(old, folder, max_shard_bytes=before)
        done = count()

        def killing(work: Callable[..., Any]) -> Callable[..., Any]:
            def step(*given: Any, **named: Any) -> Any:
                if next(done) == place:
                    raise Killed
                return work(*given, **named)

            return step

        killed = False
        with monkeypatch.context() as patched:
            for name in ("replace", "unlink", "write_text"):
                patched.setattr(Path, name, killing(getattr(Path, name)))
            patched.setattr(checkpoint_files, "save_file", killing(checkpoint_files.save_file))
            try:
                save_model(new, folder, max_shard_bytes=after)
            except Killed:
                killed = True
        try:
            found = dict(load_model(type(new), folder, torch.float32).state_dict())
        except CheckpointError:
            assert killed
        else:
            assert same(found, dict((old if killed else new).state_dict()))
            assert before is not None or not killed
        save_model(new, folder, max_shard_bytes=after)  # what was left behind does not matter
        assert same(dict(load_model(type(new), folder, torch.float32).state_dict()), dict(new.state_dict()))
        assert not list(folder.glob(".*"))
        return killed

    places = next(place for place in count() if not stop_at(place))
    assert places > 5


@models
def test_loading_takes_the_weights_and_one_tensor(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    save_model(model, tmp_path, torch.float16, max_shard_bytes=SHARD)
    loaded, peak = peak_of(lambda: load_model(type(model), tmp_path, torch.float32))
    sizes = [tensor.nbytes for tensor in loaded.state_dict().values()]
    assert sum(sizes) <= peak <= sum(sizes) + 2 * max(sizes)


def test_a_shard_must_be_able_to_hold_something(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="max_shard_bytes is 0"):
        save_model(tiny_model(), tmp_path, max_shard_bytes=0)


# What is not whole


def sharded(folder: Path) -> tuple[type, dict[str, Tensor], dict[str, Any]]:
    """A checkpoint in shards: its class, tensors and index."""
    model = tiny_model()
    save_model(model, folder, max_shard_bytes=SHARD)
    return type(model), dict(model.state_dict()), json.loads((folder / INDEX).read_text())


def refused(model_class: type, folder: Path) -> str:
    with pytest.raises(CheckpointError) as caught:
        load_model(model_class, folder, torch.float32)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_shard_that_the_index_names_and_nobody_has_is_named(tmp_path: Path) -> None:
    model_class, _, _ = sharded(tmp_path)
    gone = weight_files(tmp_path)[1]
    gone.unlink()
    assert f"names {gone.name}, which {tmp_path} lacks" in refused(model_class, tmp_path)


def test_a_tensor_that_the_index_does_not_name_is_named(tmp_path: Path) -> None:
    model_class, _, index = sharded(tmp_path)
    name, file = sorted(index["weight_map"].items())[0]
    del index["weight_map"][name]
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert f"{file} holds {name}, which {tmp_path / INDEX} does not name" in refused(model_class, tmp_path)


def test_a_tensor_in_two_shards_is_named(tmp_path: Path) -> None:
    model_class, _, _ = sharded(tmp_path)
    first, second = weight_files(tmp_path)[:2]
    tensors = load_file(first)
    save_file(load_file(second) | tensors, second)
    sentence = refused(model_class, tmp_path)
    assert any(f"{name} is in {first.name} and in {second.name}" in sentence for name in tensors)


def test_a_tensor_that_is_not_where_the_index_says_is_named(tmp_path: Path) -> None:
    model_class, _, index = sharded(tmp_path)
    files = sorted(set(index["weight_map"].values()))
    name, file = sorted(index["weight_map"].items())[0]
    other = next(candidate for candidate in files if candidate != file)
    index["weight_map"][name] = other
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert f"says that {name} is in {other}; it is in {file}" in refused(model_class, tmp_path)
    index["weight_map"] |= {name: file, "model.nobody": file}
    (tmp_path / INDEX).write_text(json.dumps(index))
    assert f"says that model.nobody is in {file}; no file has it" in refused(model_class, tmp_path)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is no JSON"),
        ("[]", "is no JSON object"),
        ("{}", "has no weight_map"),
        ('{"weight_map": {"a": "../model.safetensors"}}', "must be a .safetensors file beside it"),
        ('{"weight_map": {"a": "model.bin"}}', "must be a .safetensors file beside it"),
        ('{"weight_map": {"a": "x.safetensors", "a": "y.safetensors"}}', "has a twice"),
    ],
)
def test_an_index_that_makes_no_sense_is_refused(text: str, sentence: str, tmp_path: Path) -> None:
    model_class, _, _ = sharded(tmp_path)
    (tmp_path / INDEX).write_text(text)
    assert sentence in refused(model_class, tmp_path)


def test_two_checkpoints_in_one_folder_are_refused(tmp_path: Path) -> None:
    model_class, tensors, _ = sharded(tmp_path)
    save_file({name: tensor.clone() for name, tensor in tensors.items()}, tmp_path / WEIGHTS)
    assert f"has both {WEIGHTS} and {INDEX}" in refused(model_class, tmp_path)


def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path) -> None:
    model_class, _, _ = sharded(tmp_path)
    for text, sentence in (("{", "is no JSON"), ("[]", "is no JSON object")):
        (tmp_path / "config.json").write_text(text)
        assert sentence in refused(model_class, tmp_path)


def test_a_file_that_was_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    model = tiny_model()
    save_model(model, tmp_path)
    path = tmp_path / WEIGHTS
    content = path.read_bytes()

    @settings(max_examples=25)
    @given(st.integers(0, len(content) - 1))
    def cut(length: int) -> None:
        path.write_bytes(content[:length])
        sentence = refused(type(model), tmp_path)
        assert f"{path} has {length} bytes" in sentence or "inside its header" in sentence

    cut()
    path.write_bytes(content + b"\0")
    assert f"{path} has {len(content) + 1} bytes" in refused(type(model), tmp_path)


def test_a_damaged_header_is_refused_or_reads_as_what_it_says(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_file({"a": torch.zeros(3, 2), "b": torch.zeros(4, dtype=torch.bfloat16)}, path)
    content = path.read_bytes()
    header = 8 + int.from_bytes(content[:8], "little")

    @given(st.integers(0, header - 1), st.integers(0, 255))
    def change(place: int, byte: int) -> None:
        path.write_bytes(content[:place] + bytes([byte]) + content[place + 1 :])
        try:
            found = read_header(path)
        except CheckpointError:
            return  # anything else would be a trace for the person who has the file
        assert sum(tensor.bytes for tensor in found.values()) == len(content) - header

    change()


@pytest.mark.parametrize(
    ("header", "sentence"),
    [
        ('{"a":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
         "has a twice in its header"),
        ('{"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}}', "12 bytes from its shape"),
        ('{"a":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}', "the file is damaged"),
        ('{"a":{"dtype":"F4","shape":[1],"data_offsets":[0,8]}}', "dtype 'F4'"),
        ('{"a":{"dtype":"F32","shape":[-1],"data_offsets":[0,8]}}', "makes no sense"),
        ('{"a":7}', "makes no sense"),
        ("[1]", "no JSON object"),
        ("{nonsense", "no JSON"),
        ("[" * 100_000, "no JSON"),
    ],
)  # fmt: skip
def test_a_header_that_makes_no_sense_is_refused(header: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(header)) + header.encode() + bytes(8))
    with pytest.raises(CheckpointError, match=re.escape(sentence)):
        read_header(path)


def test_weights_of_another_kind_are_refused(tmp_path: Path) -> None:
    model = tiny_model()
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    name = "model.layers.0.mlp.up_proj.weight"
    save_file(tensors | {name: tensors[name].to(torch.int8)}, tmp_path / WEIGHTS)
    assert f"{name} is stored as I8; only F64, F32, F16, BF16 are read" in refused(type(model), tmp_path)


def test_many_problems_are_counted(tmp_path: Path) -> None:
    model = tiny_model()
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    save_file({name: tensor for name, tensor in tensors.items() if "norm" not in name}, tmp_path / WEIGHTS)
    gone = sorted(name for name in tensors if "norm" in name)
    assert f"missing {', '.join(gone[:5])} and {len(gone) - 5} more" in refused(type(model), tmp_path)


# Experts


def merge(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The layout of dFactory's converter: all experts of a layer and projection stacked, the name without `.weight`."""
    merged: dict[str, Tensor] = {}
    parts: dict[str, dict[int, Tensor]] = {}
    for name, tensor in tensors.items():
        found = EXPERT.fullmatch(name)
        if found is None:
            merged[name] = tensor
        else:
            parts.setdefault(found[1] + found[3], {})[int(found[2])] = tensor
    return merged | {name: torch.stack([part[e] for e in sorted(part)]) for name, part in parts.items()}


@pytest.mark.parametrize("architecture", [name for name in ARCHITECTURES if "Moe" in name])
def test_merged_experts_load_as_separate_ones_do(architecture: str, tmp_path: Path) -> None:
    model = tiny_model(architecture)
    save_model(model, tmp_path)
    tensors = load_file(tmp_path / WEIGHTS)
    merged = merge(tensors)
    assert len(merged) < len(tensors)
    save_file(merged, tmp_path / WEIGHTS)
    loaded = load_model(type(model), tmp_path, torch.float32)
    assert same(dict(loaded.state_dict()), tensors)
    save_model(loaded, tmp_path)
    assert same(load_file(tmp_path / WEIGHTS), tensors)  # published names again

    name = next(name for name in merged if name not in tensors)
    save_file(merged | {name: merged[name][1:]}, tmp_path / WEIGHTS)
    assert f"{name} has shape" in refused(type(model), tmp_path)
    separate = next(other for other in tensors if other not in merged)
    save_file(merged | {separate: tensors[separate]}, tmp_path / WEIGHTS)
    assert f"unexpected {separate}" in refused(type(model), tmp_path)
    save_file({other: tensor for other, tensor in merged.items() if other != name}, tmp_path / WEIGHTS)
    assert f"missing {name}" in refused(type(model), tmp_path)


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32, torch.float16])
def test_a_router_bias_keeps_the_dtype_it_is_stored_in(stored: torch.dtype, dtype: torch.dtype, tmp_path: Path) -> None:
    model = tiny_model("LLaDA2MoeModelLM")
    save_model(model, tmp_path, torch.bfloat16)
    tensors = load_file(tmp_path / WEIGHTS)
    biases = [name for name in tensors if name.endswith("expert_bias")]
    assert biases
    finer = {name: torch.full_like(tensors[name], 1 + 2**-12, dtype=torch.float32).to(stored) for name in biases}
    save_file(tensors | finer, tmp_path / WEIGHTS)
    loaded = load_model(type(model), tmp_path, dtype)
    state = loaded.state_dict()
    assert all(state[name].dtype == stored and torch.equal(state[name], finer[name]) for name in biases)
    assert {p.dtype for p in loaded.parameters()} == {dtype}
    save_model(loaded, tmp_path / "again", torch.float16)
    again = load_file(tmp_path / "again" / WEIGHTS)
    assert all(again[name].dtype == stored and torch.equal(again[name], finer[name]) for name in biases)


# Published checkpoints at their real size, without their weights


PUBLISHED = {
    "llada": ("LLaDA-8B-Instruct",),
    "dream": ("Dream-v0-Instruct-7B",),
    "sdar": ("SDAR-1.7B-Chat", "SDAR-4B-Chat", "SDAR-8B-Chat"),
    "sdar_moe": ("SDAR-30B-A3B-Chat",),
    "llada2": ("LLaDA2.0-mini",),
    "llada2_1": ("LLaDA2.1-mini",),
}
SHORT = {"float32": "F32", "bfloat16": "BF16"}


def expanded(checkpoint: dict[str, Any]) -> dict[str, tuple[str, list[int]]]:
    """Dtype and shape of every published tensor, from the patterns of the golden."""
    tensors = {}
    layers_of_all = checkpoint["config"].get("num_hidden_layers") or checkpoint["config"]["n_layers"]
    for pattern in checkpoint["tensors"]:
        layers = range(*pattern.get("layers", [0, layers_of_all])) if "{layer}" in pattern["key"] else [0]
        experts = range(pattern["count"] // len(layers))
        names = [pattern["key"].format(layer=layer, expert=expert) for layer in layers for expert in experts]
        assert len(set(names)) == pattern["count"]
        tensors |= dict.fromkeys(names, (SHORT[pattern["dtype"]], pattern["shape"]))
    return tensors


def write_holes(folder: Path, tensors: dict[str, tuple[str, list[int]]], shards: int) -> int:
    """A checkpoint whose headers are whole and whose numbers are holes in the file; its bytes of tensors."""
    folder.mkdir(exist_ok=True)
    names, weight_map, total = list(tensors), {}, 0
    each = -(-len(names) // shards)
    for shard in range(shards):
        file = folder / f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        header, end = {}, 0
        for name in names[shard * each : (shard + 1) * each]:
            dtype, shape = tensors[name]
            size = BYTES[dtype] * math.prod(shape)
            header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
            end += size
        text = json.dumps(header).encode()
        file.write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(file, 8 + len(text) + end)
        weight_map |= dict.fromkeys(header, file.name)
        total += end
    (folder / INDEX).write_text(json.dumps({"metadata": {"total_size": total}, "weight_map": weight_map}))
    return total


@pytest.mark.shared
@pytest.mark.parametrize(("golden", "place"), [(g, i) for g, names in PUBLISHED.items() for i in range(len(names))])
def test_a_published_checkpoint_fits_its_model_at_real_size(
    shared: Path, golden: str, place: int, tmp_path: Path
) -> None:
    checkpoint = json.loads((shared / "goldens" / golden / "published.json").read_text())["checkpoints"][place]
    assert any(PUBLISHED[golden][place] in hub_id for hub_id in checkpoint["hub_ids"])
    model = meta_model(model_class_of(checkpoint["config"]), checkpoint["config"])
    tensors = expanded(checkpoint)
    assert {name: list(tensor.shape) for name, tensor in model.state_dict().items()} == {
        name: shape for name, (_, shape) in tensors.items()
    }
    assert len(tensors) == checkpoint["n_tensors"]
    assert {tensor.device.type for tensor in model.state_dict().values()} == {"meta"}

    total = write_holes(tmp_path, tensors, checkpoint.get("shards", 4))
    assert total == checkpoint.get("total_size_published", checkpoint["total_size_computed"])
    (tmp_path / "config.json").write_text(json.dumps(checkpoint["config"]))
    stored = stored_weights(tmp_path)
    check_tensors(model, stored, tmp_path)
    assert stored.bytes == stored.stated_bytes == total
    name = next(reversed(tensors))
    write_holes(tmp_path, tensors | {name: ("BF16", [3, 5])}, checkpoint.get("shards", 4))
    with pytest.raises(CheckpointError, match=re.escape(f"{name} has shape (3, 5) instead of")):
        check_tensors(model, stored_weights(tmp_path), tmp_path)
