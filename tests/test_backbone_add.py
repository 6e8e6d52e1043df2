"""A checkpoint becomes a backbone without its weights being loaded; what does not fit is refused in one sentence."""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny import ARCHITECTURES, train_job
from typer.testing import CliRunner

from dare.__main__ import app
from dare.catalog import UnknownBackboneError, added_root, backbone_directory, backbones
from dare.data.corpus import alphabet
from dare.families.checkpoint_files import save_model, weight_files
from dare.family import load_family
from dare.run import load_backbone
from dare.seeds import generator_for
from dare.spec import JobSpec
from dare.weights.add import Request, add, verify
from dare.weights.files import BackboneError, inspect
from dare.weights.hashes import weights_sha256
from dare.weights.hub import HubError, pin

models = pytest.mark.parametrize("architecture", ARCHITECTURES)
SHARD = 300_000


@pytest.fixture(autouse=True)
def _own_backbones(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DARE_BACKBONES", str(tmp_path / "backbones"))


def checkpoint(folder: Path, architecture: str = "SDARForCausalLM", most: int = SHARD, seed: int = 0) -> Path:
    """A published checkpoint at tiny size: configuration, tokenizer and weights in bf16, in shards."""
    family = load_family(ARCHITECTURES[architecture])
    backbone = family.tiny(alphabet(), generator_for(seed, "add", architecture), architecture)
    backbone.save(folder)
    save_model(backbone.model, folder, torch.bfloat16, max_shard_bytes=most)
    return folder


def change(path: Path, **values: Any) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps({k: v for k, v in (content | values).items() if v is not None}))


def refused(request: Request) -> str:
    before = backbones()
    with pytest.raises(BackboneError) as caught:
        add(request)
    assert backbones() == before
    assert "\n" not in str(caught.value)
    return str(caught.value)


@models
def test_a_folder_in_shards_is_added_in_place_and_loads(architecture: str, tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "Some-Checkpoint", architecture)
    assert len(weight_files(folder)) > 1
    before = {file: file.stat().st_mtime_ns for file in folder.iterdir()}
    totals: list[int] = []
    hashed: list[int] = []
    record = add(Request(str(folder), licence="MIT"), totals.append, hashed.append)
    assert {file: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    assert sum(hashed) == totals[0] == sum(file.stat().st_size for file in folder.iterdir())

    assert backbones()["Some-Checkpoint"] == record
    assert (record.family, record.licence) == (ARCHITECTURES[architecture], "MIT")
    assert backbone_directory("Some-Checkpoint") == folder
    assert record.files == {file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in folder.iterdir()}
    lines = "".join(f"{record.files[file.name]}  {file.name}\n" for file in weight_files(folder))
    assert record.weights_sha256 == weights_sha256(folder) == hashlib.sha256(lines.encode()).hexdigest()
    assert record.tokenizer_sha256 == record.files["tokenizer.json"]
    assert verify("Some-Checkpoint") == []

    loaded = load_family(record.family).load(backbone_directory(record.name))
    assert sum(parameter.numel() for parameter in loaded.model.parameters()) == record.parameters
    assert record.sampling.block_length == (loaded.block_size or 32)
    assert record.sampling.gen_length % record.sampling.block_length == 0
    assert type(loaded.model).__name__ == architecture


def job_on(name: str) -> JobSpec:
    return train_job("sdar").model_copy(update={"backbone": backbones()[name].ref})


def test_a_run_takes_an_added_backbone_and_refuses_it_when_a_shard_has_changed(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "sharded")
    add(Request(str(folder)))
    job = job_on("sharded")
    assert load_backbone(job, backbone_directory("sharded")).block_size == 4
    shard = weight_files(folder)[1]
    tensors = load_file(shard)
    save_file({name: tensor + 1 for name, tensor in tensors.items()}, shard, metadata={"format": "pt"})
    with pytest.raises(UnknownBackboneError, match="the weights of sharded hash to"):
        load_backbone(job, backbone_directory("sharded"))
    shard.unlink()
    with pytest.raises(UnknownBackboneError, match=f"names {shard.name}"):
        load_backbone(job, backbone_directory("sharded"))


def test_one_file_is_known_by_its_own_hash(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one", most=10**9)
    record = add(Request(str(folder), revision="my-state", name="uno"))
    assert record.weights_sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert (record.revision, record.licence, record.origin) == ("my-state", "unknown", None)
    assert backbones().keys() >= {"llada-tiny", "sdar-tiny", "uno"}


def test_the_same_name_twice_needs_the_same_content(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "twice")
    first = add(Request(str(folder)))
    assert add(Request(str(folder))) == first
    moved = tmp_path / "elsewhere"
    folder.rename(moved)
    with pytest.raises(UnknownBackboneError, match="which is not there now"):
        backbone_directory("twice")
    assert add(Request(str(moved), name="twice")).directory == str(moved)
    other = checkpoint(tmp_path / "other", seed=1)
    sentence = refused(Request(str(other), name="twice"))
    assert "backbone twice is already there with other content (model-00001-of-" in sentence
    assert add(Request(str(other))).name == "other"


def test_a_shipped_name_and_a_name_that_is_a_path_are_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "x")
    assert "is a backbone of this package" in refused(Request(str(folder), name="sdar-tiny"))
    for name in ("../x", "", ".x", "a/b", "x" * 101):
        if name:
            assert "cannot name a backbone" in refused(Request(str(folder), name=name))


def test_verify_names_what_changed_what_is_missing_and_what_is_new(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "v")
    add(Request(str(folder)))
    change(folder / "tokenizer_config.json", extra=1)
    (folder / "chat_template.jinja").unlink()
    (folder / "more.txt").write_text("x")
    (folder / "code.py").write_text("x")  # no part of a checkpoint
    problems = verify("v")
    assert len(problems) == 3
    assert "chat_template.jinja is missing" in problems
    assert "more.txt is new" in problems
    assert any(problem.startswith("tokenizer_config.json hashes to") for problem in problems)
    with pytest.raises(UnknownBackboneError, match="unknown backbone 'w'"):
        verify("w")


def test_shipped_backbones_are_what_their_records_say() -> None:
    assert not any(verify(name) for name in backbones())


# What does not fit


def test_what_cannot_be_loaded_is_refused_before_any_weight_is_read(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    with pytest.raises(BackboneError, match="no config"):
        inspect(tmp_path)
    change(folder / "config.json", architectures=["LlamaForCausalLM"])
    assert "'LlamaForCausalLM'" in refused(Request(str(folder)))
    change(folder / "config.json", architectures=["SDARForCausalLM"], sliding_window=128)
    assert "sliding_window = 128" in refused(Request(str(folder)))
    change(folder / "config.json", sliding_window=None, intermediate_size=200)
    assert "has shape (192, 64) instead of (200, 64)" in refused(Request(str(folder)))


def test_an_index_with_another_size_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    index = folder / "model.safetensors.index.json"
    change(index, metadata={"total_size": 7})
    assert "states 7 bytes of tensors, its files hold" in refused(Request(str(folder)))
    change(index, metadata={})
    assert add(Request(str(folder))).family == "sdar"


def test_a_tokenizer_that_does_not_fit_is_refused(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "c")
    path = folder / "tokenizer.json"
    text = path.read_text()
    content = json.loads(text)
    rows = json.loads((folder / "config.json").read_text())["vocab_size"]
    content["model"]["vocab"]["far"] = rows
    path.write_text(json.dumps(content))
    assert f"has 'far' as {rows}, but the embedding has {rows} rows" in refused(Request(str(folder)))
    path.write_text(text.replace("<|im_end|>", "<|end|>"))
    change(folder / "tokenizer_config.json", added_tokens_decoder=None)
    assert "has no token '<|im_end|>', which ends a turn of family sdar" in refused(Request(str(folder)))
    content = json.loads(text)
    content["added_tokens"] = [token for token in content["added_tokens"] if token["content"] != "<|MASK|>"]
    mask = content["model"]["vocab"].pop("<|MASK|>")
    path.write_text(json.dumps(content))
    assert f"has mask_token_id {mask}, which its tokenizer does not know" in refused(Request(str(folder)))
    path.write_text("{")
    assert "is no JSON" in refused(Request(str(folder)))
    path.unlink()
    assert "has no tokenizer: neither tokenizer.json nor vocab.json" in refused(Request(str(folder)))


def test_a_tokenizer_in_parts_counts_as_one(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "parts")
    content = json.loads((folder / "tokenizer.json").read_text())
    added = {token["content"]: token["id"] for token in content["added_tokens"]}
    vocabulary = {token: number for token, number in content["model"]["vocab"].items() if token not in added}
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    (folder / "added_tokens.json").write_text(json.dumps(added))
    record = add(Request(str(folder)))
    names = ("added_tokens.json", "merges.txt", "vocab.json")
    lines = "".join(f"{record.files[name]}  {name}\n" for name in names)
    assert record.tokenizer_sha256 == hashlib.sha256(lines.encode()).hexdigest()


def test_a_source_that_is_nothing_is_refused() -> None:
    assert "neither a folder that exists nor a hub id" in refused(Request("no/such/folder"))
    assert "needs an exact revision" in refused(Request("owner/name"))


# The hub


@dataclass
class Hub:
    """What of the hub's protocol the client uses, over a folder, at one commit with one branch."""

    folder: Path
    commit: str = "0123456789abcdef0123456789abcdef01234567"
    asked: list[str] = field(default_factory=list)
    endpoint: str = ""

    @contextmanager
    def serving(self) -> Iterator[Hub]:
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_HEAD(self) -> None:
                self._answer(body=False)

            def do_GET(self) -> None:
                self._answer(body=True)

            def _answer(self, body: bool) -> None:
                parts = self.path.partition("?")[0].strip("/").split("/")
                headers: dict[str, str] = {}
                content = None
                if parts[:4] == ["api", "models", "owner", "name"] and parts[4:5] in (["revision"], []):
                    if parts[5:6] in ([hub.commit], ["main"]):
                        content = json.dumps(hub.info()).encode()
                    else:
                        headers["X-Error-Code"] = "RevisionNotFound"
                elif parts[:6] == ["api", "models", "owner", "name", "tree", hub.commit]:  # asked by version 2
                    listed = [
                        {"type": "file", "path": file["rfilename"], "size": file["size"], "oid": "0" * 40}
                        for file in hub.info()["siblings"]
                    ]
                    content = json.dumps(listed).encode()
                elif parts[:3] == ["owner", "name", "resolve"] and parts[3] == hub.commit:
                    hub.asked.append(f"{self.command} {parts[4]}")
                    content = (hub.folder / parts[4]).read_bytes()
                    headers = {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": hub.commit}
                else:
                    headers["X-Error-Code"] = "RepoNotFound"
                self.send_response(404 if content is None else 200)
                for name, value in headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content or b"")))
                self.end_headers()
                if body and content:
                    self.wfile.write(content)

            def log_message(self, *_: Any) -> None:
                """Quiet."""

        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        self.endpoint = f"http://127.0.0.1:{server.server_port}"
        try:
            yield self
        finally:
            server.shutdown()
            server.server_close()
            thread.join()

    def info(self) -> dict[str, Any]:
        files = sorted(path.relative_to(self.folder).as_posix() for path in self.folder.rglob("*") if path.is_file())
        return {
            "_id": "1", "id": "owner/name", "modelId": "owner/name", "sha": self.commit, "private": False,
            "tags": [], "downloads": 0, "likes": 0, "cardData": {"license": "apache-2.0"},
            "siblings": [{"rfilename": name, "size": (self.folder / name).stat().st_size} for name in files],
        }  # fmt: skip


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[Hub]:
    folder = checkpoint(tmp_path / "published")
    (folder / "modeling_sdar.py").write_text("raise SystemExit('remote code ran')")
    (folder / "pytorch_model.bin").write_bytes(b"pickle")
    (folder / "original").mkdir()
    (folder / "original" / "weights.safetensors").write_bytes(b"again")
    with Hub(folder).serving() as serving:
        yield serving


def test_a_hub_id_is_fetched_at_the_commit_of_its_branch_without_code_or_pickles(hub: Hub) -> None:
    record = add(Request("owner/name", "main", endpoint=hub.endpoint))
    assert (record.name, record.origin, record.revision) == ("name", "owner/name", hub.commit)
    assert record.licence == "apache-2.0"
    assert backbone_directory("name") == added_root() / "name" / "files"
    assert record.files.keys() == {
        file.name for file in hub.folder.iterdir() if file.suffix in (".json", ".jinja", ".safetensors")
    }
    assert record.weights_sha256 == weights_sha256(hub.folder)
    fetched = {asked.split()[1] for asked in hub.asked}
    assert not any(name.endswith((".py", ".bin")) or name == "weights.safetensors" for name in fetched)
    assert verify("name") == []
    assert load_family("sdar").load(backbone_directory("name")).block_size == 4

    assert add(Request("owner/name", hub.commit, endpoint=hub.endpoint)) == record
    hub.commit = "f" * 40
    assert "give another --name" in refused(Request("owner/name", "main", endpoint=hub.endpoint))


def test_weights_are_not_fetched_for_a_model_that_cannot_be_loaded(hub: Hub) -> None:
    change(hub.folder / "config.json", architectures=["LlamaForCausalLM"])
    assert "'LlamaForCausalLM'" in refused(Request("owner/name", "main", endpoint=hub.endpoint))
    assert not any(".safetensors" in asked and "index" not in asked for asked in hub.asked)
    assert not (added_root() / "name").exists()


def test_what_the_hub_has_not_is_said_in_a_sentence(hub: Hub) -> None:
    with pytest.raises(HubError, match="has no revision 'v9'"):
        add(Request("owner/name", "v9", endpoint=hub.endpoint))
    with pytest.raises(HubError, match="the hub has no owner/other"):
        add(Request("owner/other", "main", endpoint=hub.endpoint))


def test_without_a_network_the_sentence_says_to_add_a_folder(hub: Hub) -> None:
    with Hub(hub.folder).serving() as gone:
        endpoint = gone.endpoint
    with pytest.raises(HubError, match=r"cannot be reached for owner/name \(Connect(ion)?Error\): .* add the folder"):
        pin("owner/name", "main", endpoint)


# Commands


def test_the_commands_add_and_verify(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "by-hand")
    runner = CliRunner()
    done = runner.invoke(app, ["backbone", "add", str(folder), "--licence", "MIT", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.stdout)["files"] == backbones()["by-hand"].files
    assert runner.invoke(app, ["backbone", "verify", "by-hand"]).exit_code == 0
    change(folder / "config.json", extra=1)
    failed = runner.invoke(app, ["backbone", "verify", "by-hand"])
    assert failed.exit_code == 1
    assert "config.json hashes to" in failed.stderr
    twice = runner.invoke(app, ["backbone", "add", str(folder)])
    assert twice.exit_code == 2
    assert "already there with other content (config.json)" in twice.stderr.replace("\n", " ")
