"""Algorithm files are read, never imported, and every problem is one exact sentence with its place."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dare import catalog
from dare.source import check_hyperparameters, first_sentence, read_source
from dare.source.hyperparameters import from_assignment, misfit, parse_settings, settled
from dare.source.problems import shown

HEAD = """\
from dataclasses import dataclass
from typing import ClassVar, Literal
import torch
from dare.algorithm import GRPO, Algorithm
from dare.algorithms.bgpo import BGPO
from dare.algorithms.d1 import D1
"""
CLASS = "@dataclass(frozen=True, kw_only=True)\nclass MyRule(GRPO):\n"


def problems(text: str | bytes) -> list[str]:
    content = text.encode() if isinstance(text, str) else text
    return [problem.text for problem in read_source(content, "mine").problems]


def codes(text: str) -> list[str]:
    return [problem.code for problem in read_source(text.encode(), "mine").problems]


def body(text: str) -> str:
    """A file with one class whose body is `text`."""
    indented = "".join(f"    {line}\n" for line in text.splitlines())
    return HEAD + CLASS + indented


def test_every_builtin_is_described_and_would_pass_as_an_entry() -> None:
    for name, source in catalog.algorithms().items():
        reading = read_source(source.text.encode(), name)
        assert reading.problems == (), name
        assert source.summary.endswith((".", ")")), name
        assert all(parameter.help for parameter in source.hyperparameters), name


def test_descriptions_agree_with_what_python_sees() -> None:
    """Reading and importing must not differ: fields, defaults, class variables, and their inheritance."""
    from dataclasses import fields

    from dare.algorithm import Algorithm, load_algorithm
    from dare.spec import AlgorithmSpec

    for name, source in catalog.algorithms().items():
        loaded = load_algorithm(AlgorithmSpec(name=name))
        assert {p.name: p.default for p in source.hyperparameters} == {
            f.name: getattr(loaded, f.name) for f in fields(loaded)
        }
        assert source.trains_on == loaded.trains_on
        assert source.needs == loaded.needs
        assert source.record == loaded.record
        assert source.class_name == type(loaded).__name__
        assert isinstance(loaded, Algorithm)


def test_reading_needs_no_torch() -> None:
    code = "import sys, dare.catalog as c; c.algorithms(); c.families(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_a_hyperparameter_has_its_type_default_help_and_origin() -> None:
    text = body(
        'mc_samples: int = 8\n"""Views per\n    completion."""\nkl_coef: float = 1\n'
        'kind: Literal["a", "b"] | None = None'
    )
    reading = read_source(text.encode(), "mine")
    assert reading.problems == ()
    assert reading.algorithm is not None
    found = {parameter.name: parameter for parameter in reading.algorithm.hyperparameters}
    assert found["mc_samples"].help == "Views per completion."
    assert (found["kl_coef"].default, type(found["kl_coef"].default), found["kl_coef"].defined_in) == (
        1.0,
        float,
        "MyRule",
    )
    assert found["kl_coef"].help.startswith("Weight of the k3 penalty")  # inherited from Algorithm
    assert (found["kind"].choices, found["kind"].optional) == (("a", "b"), True)
    assert found["advantage"].choices == ("centred", "rloo", "grpo")


@pytest.mark.parametrize(
    "text",
    [
        HEAD + "Base = D1\n@dataclass(frozen=True, kw_only=True)\nclass MyRule(Base):\n    pass\n",
        "import dataclasses\nimport dare.algorithms.d1\n"
        "@dataclasses.dataclass(frozen=True, kw_only=True)\nclass MyRule(dare.algorithms.d1.D1):\n    pass\n",
        "from dataclasses import dataclass as dc\nfrom dare.algorithms import d1\n"
        "@dc(kw_only=True, frozen=True)\nclass MyRule(d1.D1):\n    pass\n",
    ],
)
def test_bases_are_found_through_aliases(text: str) -> None:
    reading = read_source(text.encode(), "mine")
    assert reading.problems == ()
    assert reading.algorithm is not None
    assert {p.name: p.default for p in reading.algorithm.hyperparameters}["prompt_mask"] == 0.15


# --- the exact messages ---------------------------------------------------------------------------------------------


def test_message_1_an_unknown_hyperparameter_in_the_code() -> None:
    text = body("mc_samples: int = 4\n\n\n\n\n\ndef reduce(self, loss, scored, credit):\n    return self.mc_sample")
    line = text.splitlines().index("        return self.mc_sample") + 1
    expected = f"`algorithm.py` line {line}: unknown hyperparameter `mc_sample`. Did you mean `mc_samples`?"
    assert problems(text) == [expected]


def test_message_2_a_number_that_yaml_reads_as_text() -> None:
    source = read_source(body("lr: float = 1e-3").encode(), "mine").algorithm
    assert source is not None
    given = parse_settings("# mine\n\nlr: 1e-5\n")
    found = check_hyperparameters(source, given.values, given.lines)
    assert [p.text for p in found] == [
        'settings line 3: `lr` is the text "1e-5", a number is needed. In YAML write `1.0e-5`.'
    ]


def test_message_3_a_value_outside_its_choices() -> None:
    source = catalog.algorithms()["bgpo"]
    found = check_hyperparameters(source, {"advantage": "rlo"}, {"advantage": 5})
    assert [p.text for p in found] == ['settings line 5: `advantage` is "rlo"; allowed is "centred", "rloo" or "grpo".']


def test_an_algorithm_without_a_loss_is_told_where_to_get_one() -> None:
    text = "from dare.algorithm import Algorithm as Base\n\n\nclass A(Base):\n"
    text += "    def credit(self, rollout, generator): ...\n"
    assert "`algorithm.py` line 4: `A` has no `loss`. Write one, or derive from GRPO." in problems(text)
    assert "no_loss" not in codes(text + "    def loss(self, logp, old, ref, credit, views): ...\n")
    assert "no_loss" not in codes(text.replace("Algorithm as", "GRPO as"))


def test_message_4_two_algorithms_in_a_file() -> None:
    text = "from dare.algorithm import Algorithm\n\n\nclass A(Algorithm): ...\n\n\nclass B(A): ...\n"
    assert problems(text) == [
        "`algorithm.py`: two classes derive from Algorithm (`A` line 4, `B` line 7). "
        "Keep one; small functions beside it are fine."
    ]


def test_message_5_a_forbidden_import() -> None:
    text = body("pass").replace("import torch\n", "import requests\n")
    assert problems(text) == [
        "`algorithm.py` line 3: `import requests` is not allowed. Entries may import torch, math, dataclasses, typing "
        "and dare. Entries run without a network."
    ]


def test_message_6_not_utf8() -> None:
    content = b"#" * 1202 + b"\xff\n"
    assert problems(content) == ["`algorithm.py` is not UTF-8 (first bad byte at position 1,203). Save it as UTF-8."]


def test_message_7_too_large() -> None:
    assert problems(b"#" * 1_400_000) == [
        "`algorithm.py` is 1.4 MB; the limit is 1 MB. Weights and data do not belong in an entry."
    ]
    assert problems(b"#" * 1_000_001)[0].startswith("`algorithm.py` is 1.000 MB")
    assert problems(b"#" * 1_000_000) != problems(b"#" * 1_000_001)


def test_message_8_a_hook_with_other_parameters() -> None:
    text = body("def loss(self, logp, old, credit, views):\n    return None")
    line = text.splitlines().index("    def loss(self, logp, old, credit, views):") + 1
    assert problems(text) == [
        f"`algorithm.py` line {line}: `loss` takes (logp, old, credit, views); "
        "it must take (logp, old, ref, credit, views)."
    ]


def test_distributions_need_a_hook_that_reads_them_with_its_parameters() -> None:
    needs = 'needs: ClassVar = frozenset({"old", "full"})\n'
    assert [problem.partition(": ")[2] for problem in problems(body(needs))] == [
        '`MyRule` needs "full" distributions and has no `aux_loss` to read them. Write one, or leave "full" out of '
        "`needs`."
    ]
    wrong = body(needs + "def aux_loss(self, logp, credit, views):\n    return None")
    assert [problem.partition(": ")[2] for problem in problems(wrong)] == [
        "`aux_loss` takes (logp, credit, views); it must take (logp_full, credit, views, progress)."
    ]
    right = body(needs + "def aux_loss(self, logp_full, credit, views, progress):\n    return None")
    assert problems(right) == []
    source = read_source(right.encode(), "mine").algorithm
    assert source is not None
    assert source.overridden == ("aux_loss",)
    inherited = "from dare.algorithms.d_tree_rpo import DTreeRPO\n" + CLASS.replace("(GRPO)", "(DTreeRPO)")
    assert problems(HEAD + inherited + "    pass\n") == []


def test_message_9_a_family_that_cannot_record(monkeypatch: pytest.MonkeyPatch) -> None:
    source = read_source(body('record: ClassVar = frozenset({"tree"})').encode(), "mine").algorithm
    backbone = next(record for record in catalog.backbones().values() if record.family == "sdar")
    assert source is not None
    assert catalog.unsupported(source, backbone) is None
    less = replace(catalog.families()["sdar"], records=frozenset({"step_map"}))
    monkeypatch.setattr(catalog, "families", lambda: {"sdar": less})
    problem = catalog.unsupported(source, backbone)
    assert problem is not None
    assert problem.text == (
        f'`MyRule` needs trees (`record={{"tree"}}`); the sampler of {backbone.name} does not record them. '
        "Choose another backbone or leave `record` empty."
    )
    assert catalog.unsupported(catalog.algorithms()["cj_grpo"], backbone) is None


def test_a_syntax_error_names_its_line() -> None:
    assert problems("a = 1\n  b = 2\n") == ["`algorithm.py` line 2: unexpected indent."]


# --- other problems -------------------------------------------------------------------------------------------------


def test_all_problems_come_at_once_in_file_order() -> None:
    text = (
        "import os\nfrom dataclasses import dataclass\nfrom dare.algorithm import Algorithm\n"
        "@dataclass\nclass MyRule(Algorithm):\n    a: list = 1\n    b: int\n    c = 3\n"
        "    def reduce(self, loss):\n        open('x')\n"
    )
    found = read_source(text.encode(), "mine").problems
    assert [p.code for p in found] == [
        "forbidden_import", "not_a_dataclass", "no_loss", "type", "no_default", "no_type", "signature",
        "forbidden_name",
    ]  # fmt: skip
    assert [p.line for p in found] == [1, 5, 5, 6, 7, 8, 9, 10]


def test_ten_problems_are_shown_and_the_rest_counted() -> None:
    found = read_source("".join(f"import bad{i}\n" for i in range(13)).encode(), "mine").problems
    assert len(found) == 14  # and no class
    assert shown(found)[10:] == ("and 4 more",)
    assert len(shown(found[:10])) == 10


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("exec('1')", "exec"),
        ("eval('1')", "eval"),
        ("compile('1', '', 'eval')", "compile"),
        ("__import__('os')", "__import__"),
        ("open('x')", "open"),
        ("().__class__.__bases__", "__class__"),
        ("f.__globals__", "__globals__"),
        ("object.__subclasses__()", "__subclasses__"),
        ("torch.load('x')", "torch.load"),
        ("torch.save(1, 'x')", "torch.save"),
        ("torch.hub.load('x')", "torch.hub.load"),
        ("torch.manual_seed(0)", "torch.manual_seed"),
        ("torch.set_default_dtype(torch.float64)", "torch.set_default_dtype"),
        ("torch.set_num_threads(8)", "torch.set_num_threads"),
        ("torch.backends.cudnn.benchmark", "torch.backends.cudnn.benchmark"),
        ("torch.rand(3)", "torch.rand"),
        ("x.normal_()", "normal_"),
        ("__builtins__", "__builtins__"),
    ],
)
def test_forbidden_names_are_found(line: str, name: str) -> None:
    found = problems(body(f"def reduce(self, loss, scored, credit):\n    x = f = loss\n    return {line}"))
    assert any(f"`{name}` is not allowed" in text for text in found), found


@pytest.mark.parametrize(
    "line",
    [
        "torch.rand(3, generator=g)",
        "torch.nn.functional.relu(x)",
        "x.normal_(generator=g)",
        "torch.rand_like",
        "super().reduce(loss, scored, credit)",
        "self.clip_low",
        "type(self).__name__",
    ],
)
def test_allowed_lines_pass(line: str) -> None:
    assert problems(body(f"def reduce(self, loss, scored, credit):\n    x = g = loss\n    return {line}")) == []


@pytest.mark.parametrize(
    "line",
    [
        "import os", "import torch.hub", "import torch.distributed as dist", "from torch import load", "import numpy",
        "from torch.utils.cpp_extension import load_inline", "from dare.algorithm import sys", "import dare.run",
        "from dare import run", "from . import x", "from dare.algorithms.nosuch import X",
        "from dare.objectives import k4",
        "def f():\n    import socket",
    ],
)  # fmt: skip
def test_forbidden_imports_are_found(line: str) -> None:
    assert codes(line + "\n" + body("pass")) != []


@pytest.mark.parametrize(
    "line",
    [
        "import math", "import torch.nn.functional as F", "from collections.abc import Sequence",
        "from collections import abc",
        "from dare import objectives", "from dare.types import Credit, Rollout", "from torch import Tensor, nn",
        "from dare.algorithms import d1", "from dare.forward_process import RowGenerators",
    ],
)  # fmt: skip
def test_allowed_imports_pass(line: str) -> None:
    assert codes("from __future__ import annotations\n" + line + "\n" + body("pass")) == []


def test_a_file_without_a_class_says_what_to_write() -> None:
    assert problems("x = 1\n") == [
        "`algorithm.py`: no class derives from Algorithm. "
        "Write one: `from dare.algorithm import GRPO`, then `class MyRule(GRPO):`."
    ]


@pytest.mark.parametrize(
    ("field", "code"),
    [
        ("x: int = 'a'", "default"),
        ("x: float = float('inf')", "default"),
        ("x: float = 1e999", "default"),
        ("x: int = torch.tensor(1)", "default"),
        ("x: torch.Tensor = None", "type"),
        ("x: dict[str, int] = {}", "type"),
        ("x: Literal['a', 1] = 'a'", "type"),
        ("x: Literal['a', 'b'] = 'c'", "default"),
        ("x: int | str = 1", "type"),
        ("clip_low = 0.1", "no_type"),
        ("trains_on: str = 'prompts'", "class_variable"),
        ("trains_on = 'rewards'", "class_variable"),
        ("needs: ClassVar = frozenset({'olds'})", "class_variable"),
        ("record: ClassVar = make()", "class_variable"),
    ],
)
def test_fields_that_are_no_hyperparameters_are_refused(field: str, code: str) -> None:
    assert codes(body(field)) == [code]


@pytest.mark.parametrize(
    "field", ["x: float = -1", "x: float = 1 / 3", "x: 'int | None' = None", "x: bool = True", "_x = 3"]
)
def test_fields_that_are_fine_pass(field: str) -> None:
    assert codes(body(field)) == []


def test_assigning_to_a_frozen_instance_is_found() -> None:
    assert codes(body("def reduce(self, loss, scored, credit):\n    self.clip_low = 1")) == ["frozen"]


def test_a_declared_encoding_other_than_utf8_is_refused() -> None:
    assert codes("# -*- coding: latin-1 -*-\n" + body("pass")) == ["not_utf8"]


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300))
def test_reading_never_raises_on_bytes(content: bytes) -> None:
    read_source(content, "mine")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.sampled_from(body("x: int = 1\ndef loss(self): return torch.load(self.x)").split(" ")), max_size=40))
def test_reading_never_raises_on_shuffled_code(words: list[str]) -> None:
    read_source(" ".join(words).encode(), "mine")


@pytest.mark.parametrize(
    "text", ["(" * 5000, "x = " + "-" * 100_000 + "1", "\x00", "a" * 900_000 + " = 1", "f(" + "[" * 300]
)
def test_hostile_text_is_one_problem(text: str) -> None:
    assert len(problems(text)) >= 1


def test_an_expression_deeper_than_python_can_print_is_one_problem() -> None:
    found = problems(body("x: int = " + "-" * 900 + "torch.one"))
    assert len(found) == 1
    assert "nested too deeply" in found[0] or "the default of `x`" in found[0]


def test_a_byte_order_mark_changes_nothing() -> None:
    plain, marked = body("pass").encode(), b"\xef\xbb\xbf" + body("pass").encode()
    assert read_source(marked, "mine") == read_source(plain, "mine")


# --- settings -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a: 1\nb: 2\na: 3\n", "settings line 3: `a` is set twice, first in line 1. Keep one."),
        ("a: &x 1\nb: *x\n", "settings line 1: anchors and aliases are not allowed."),
        ("a: [1]\n", "settings line 1: write `name: value` lines, nothing nested."),
        ("a:\n  b: 1\n", "settings line 2: write `name: value` lines, nothing nested."),
        ("- 1\n", "settings line 1: write `name: value` lines, nothing nested."),
        ("just text\n", "settings line 1: write `name: value` lines."),
        ("a: !!python/object/apply:os.system [x]\n", "settings line 1: write `name: value` lines, nothing nested."),
        ("a: !mine 1\n", "settings line 1: `a` has the tag !mine; tags are not allowed."),
        ("x" * 64_001, "settings: 64 kB; the limit is 64 kB."),
        ("\x07", "settings: this is not YAML of `name: value` lines."),
    ],
)
def test_settings_that_are_not_flat_yaml_are_refused(text: str, sentence: str) -> None:
    assert [problem.text for problem in parse_settings(text).problems] == [sentence]


def test_settings_keep_their_lines() -> None:
    given = parse_settings("# first\nmc_samples: 4\n\nclip_low: 0.1\n")
    assert (given.values, given.lines, given.problems) == (
        {"mc_samples": 4, "clip_low": 0.1},
        {"mc_samples": 2, "clip_low": 4},
        (),
    )
    assert parse_settings("").values == {}


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=100))
def test_settings_never_raise(text: str) -> None:
    parse_settings(text)


@pytest.mark.parametrize(
    ("name", "value", "ending"),
    [
        ("mc_samples", 2.5, "is 2.5, a whole number is needed."),
        ("mc_samples", True, "is true, a whole number is needed."),
        ("mc_samples", None, "is empty, a whole number is needed."),
        ("mc_samples", 2**60, "is too large; allowed is up to 9.01e+15."),
        ("clip_low", float("nan"), "is nan; it must be finite."),
        ("clip_low", float("inf"), "is inf; it must be finite."),
        ("clip_low", "1E5", 'is the text "1E5", a number is needed. In YAML write `1.0e+5`.'),
        ("clip_low", "-2.5e3", 'is the text "-2.5e3", a number is needed. In YAML write `-2.5e+3`.'),
        ("clip_low", "a", 'is the text "a", a number is needed.'),
        ("clip_low", 1, None),
        ("mc_samples", 8.0, None),
    ],
)
def test_values_are_checked_against_their_field(name: str, value: object, ending: str | None) -> None:
    parameters = [p for source in catalog.algorithms().values() for p in source.hyperparameters]
    parameter = next(p for p in parameters if p.name == name)
    assert misfit(parameter, value) == ending


def test_an_unknown_setting_gets_the_nearest_name() -> None:
    found = check_hyperparameters(catalog.algorithms()["bgpo"], {"mc_sample": 4, "zzz": 1}, {"mc_sample": 1, "zzz": 2})
    assert found[0].text == "settings line 1: unknown hyperparameter `mc_sample`. Did you mean `mc_samples`?"
    assert found[1].text.startswith("settings line 2: unknown hyperparameter `zzz`. Known: `advantage`, `mc_samples`")


def test_settled_values_have_the_type_of_their_field() -> None:
    parameters = catalog.algorithms()["bgpo"].hyperparameters
    clips = settled(catalog.algorithms()["d1"].hyperparameters, {"clip_low": 1})
    assert (clips["clip_low"], type(clips["clip_low"])) == (1.0, float)
    values = settled(parameters, {"mc_samples": 8.0})
    assert (values["mc_samples"], type(values["mc_samples"])) == (8, int)
    assert settled(parameters, {}) == settled(parameters, {"mc_samples": 16})


@pytest.mark.parametrize(
    ("text", "value"),
    [("4", 4), ("-4", -4), ("1e-5", 1e-5), ("0.5", 0.5), ("true", True), ("null", None), ("rloo", "rloo")],
)
def test_an_assignment_is_the_value_that_it_looks_like(text: str, value: object) -> None:
    found = from_assignment(text)
    assert found == value
    assert type(found) is type(value)


def test_the_first_sentence_ends_at_its_full_stop() -> None:
    assert first_sentence("BGPO: a bound (arXiv 2510.11683).\n\nMore.") == "BGPO: a bound (arXiv 2510.11683)."
    assert first_sentence("One. Two.") == "One."
    assert first_sentence("") == ""
