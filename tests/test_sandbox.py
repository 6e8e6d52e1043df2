"""Programs are run apart from the host, and none of them passes but by giving the right values."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from dare.sandbox import HELD, PROBE, Limits, Outcome, Program, Sandbox

REPOSITORY = Path(__file__).resolve().parent.parent
TESTS = "assert double(2) == 4\nassert double(-3) == -6\nassert double(0) == 0\n"
RIGHT = "def double(x):\n    return 2 * x\n"
WRONG = "def double(x):\n    return 3 * x\n"
QUICK = Limits(cpu_seconds=1, wall_seconds=30)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    sandbox = Sandbox(QUICK)
    yield sandbox
    sandbox.close()


def first(line: str, source: str = RIGHT) -> str:
    """The source with a line that runs when it is loaded."""
    return f"{line}\n{source}"


def inside(line: str, result: str = "2 * x") -> str:
    """A function that does something, then answers."""
    return f"def double(x):\n    {line}\n    return {result}\n"


def liar(base: str, value: str) -> str:
    """A value of a class that claims to be equal to everything."""
    methods = "".join(f"    def {name}(self, other): return True\n" for name in ("__eq__", "__le__", "__ge__"))
    return (
        f"class Liar({base}):\n{methods}    def __ne__(self, other): return False\n"
        "    def __hash__(self): return 0\n"
        f"def double(x):\n    return Liar({value})\n"
    )


OUT = '[os.write(fd, b\'{"status": "passed"}\\n\') for fd in range(64) if not os_error(fd)]'
WRITES_TO_ALL = "import os\ndef os_error(fd):\n    try: os.fstat(fd)\n    except OSError: return True\n" + inside(
    OUT, "3 * x"
)
FORGES = (
    "import os\nos.write(3, (b'\\x00\\x00\\x00\\x04true') * 50)\n"  # answers to questions that are still to come
    + WRONG
)

# What a program does, whole, and how that has to end.
CASES: dict[str, tuple[str, str]] = {
    # no verdict by exit code or output
    "ends when loaded": (first("import sys; sys.exit(0)", WRONG), "failed"),
    "ends when called": (inside("raise SystemExit(0)"), "failed"),
    "interrupts": (inside("raise KeyboardInterrupt"), "failed"),
    "leaves at once when loaded": (first("import os; os._exit(0)"), "died"),
    "leaves at once when called": ("import os\n" + inside("os._exit(0)"), "died"),
    "leaves at its end": (first("import atexit, os; atexit.register(os._exit, 0)", WRONG), "failed"),
    "says passed": (first("print('passed', flush=True)", WRONG), "failed"),
    "writes to everything open": (WRITES_TO_ALL, "failed"),
    "answers before it is asked": (FORGES, "failed"),
    "closes everything open": ("import os\n" + inside("os.closerange(0, 64)"), "died"),
    "kills its group": ("import os\n" + inside("os.kill(0, 9)", "3 * x"), "failed"),
    "kills everything": ("import os\n" + inside("os.kill(-1, 9)", "3 * x"), "failed"),
    # values are compared where the program is not
    "an object equal to everything": (liar("object", ""), "failed"),
    "a number equal to everything": (liar("int", "7"), "failed"),
    "a text equal to everything": (liar("str", "'4'"), "failed"),
    "a list equal to everything": (liar("list", "[4]"), "failed"),
    "a class equal to everything": (
        "class Meta(type):\n    def __eq__(cls, other): return True\n    def __hash__(cls): return 0\n"
        "class Liar(metaclass=Meta): pass\ndef double(x):\n    return Liar\n",
        "failed",
    ),
    "patches the builtins": (
        first(
            "import builtins, operator; builtins.AssertionError = None; builtins.all = lambda _: True; "
            "builtins.isinstance = lambda *_: True; operator.eq = lambda *_: True",
            WRONG,
        ),
        "failed",
    ),
    "patches its own side of the channel": (
        first("import __main__; __main__.encode = lambda _: '4'", WRONG),
        "failed",
    ),
    "replaces standard output": (first("import sys, io; sys.stdout = sys.stderr = io.StringIO()"), "passed"),
    "handles all signals": (
        first(
            "import signal\nfor n in range(1, 32):\n    if n not in (9, 19): signal.signal(n, lambda *_: None)", WRONG
        ),
        "failed",
    ),
    # values that cannot be
    "a text too long to compare": (inside("x = 'a' * (1 << 24)", "x"), "failed"),
    "a list in itself": (inside("x = []; x.append(x)", "x"), "failed"),
    "a deep list": (inside("y = x\n    for _ in range(900): y = [y]", "y"), "failed"),
    "an exception without words": (
        "class Mute(Exception):\n    def __str__(self): raise Mute\n" + inside("raise Mute"),
        "failed",
    ),
    # resources
    "reads standard input": (inside("return 2 * int(input())"), "failed"),
    "reads standard input when loaded": (first("n = input('value? ')"), "failed"),
    "two gigabytes of memory": (inside("y = bytearray(2 << 30)"), "failed"),
    "memory that no limit counts": ("import os\n" + inside("os.memfd_create('m')"), "failed"),
    "a file of a gigabyte": (
        inside("with open('f', 'wb') as f:\n        for _ in range(1024): f.write(bytes(1 << 20))"),
        "failed",
    ),
    "a thousand files": (
        inside("for n in range(2000):\n        with open(f'f{n}', 'wb') as f: f.write(bytes(1 << 16))"),
        "failed",
    ),
    "a gigabyte of output": (
        "import os\n" + inside("if x == 2:\n        for _ in range(1024): os.write(1, bytes(1 << 20))"),
        "passed",
    ),
    "recursion without end": (inside("return double(x)"), "failed"),
    "recursion without a limit": (
        first("import sys; sys.setrecursionlimit(1 << 30)", "class A:\n    def __repr__(s): return repr([s])\n")
        + inside("repr(A())"),
        "died",
    ),
    "a wild pointer": ("import ctypes\n" + inside("ctypes.string_at(1)"), "died"),
    "open files without end": (inside("y = [open('/dev/null') for _ in range(100)]"), "failed"),
    # other processes
    "a child": ("import os\n" + inside("os.fork()"), "failed"),
    "a thousand children": (
        "import os, time\n" + inside("for _ in range(1000):\n        if os.fork() == 0: time.sleep(5)"),
        "failed",
    ),
    "a program of the system": ("import subprocess\n" + inside("subprocess.run(['/bin/sh', '-c', 'true'])"), "failed"),
    "a background process": (
        "import subprocess, sys\n" + inside("subprocess.Popen([sys.executable], start_new_session=True)"),
        "failed",
    ),
    "threads that never end": (
        "import threading, time\n" + inside("threading.Thread(target=time.sleep, args=(1000,)).start()"),
        "passed",
    ),
    "further namespaces": (
        "import ctypes\n" + inside("assert ctypes.CDLL(None).unshare(0x10000000) == 0"),
        "failed",
    ),
    "a further mount": (
        "import ctypes\n" + inside("assert ctypes.CDLL(None).mount(b'x', b'/tmp', b'tmpfs', 0, None) == 0"),
        "failed",
    ),
    # network
    "a connection": (
        "import socket\n" + inside("socket.create_connection(('192.0.2.1', 80), timeout=1)"),
        "failed",
    ),
    "a connection to this machine": (
        "import socket\n" + inside("socket.create_connection(('127.0.0.1', 22), timeout=1)"),
        "failed",
    ),
    # files
    "a file of its own": (inside("with open('f', 'w') as f: f.write('x')"), "passed"),
    "a file somebody left": (
        "import os\n" + inside("assert os.listdir() == []; open('f', 'w').close(); os.remove('f')"),
        "passed",
    ),
    "a file of the system": (inside("open('/etc/hostname').read()"), "failed"),
    "a file beside Python": (inside("open('/candidate', 'wb')"), "failed"),
    "what is installed": ("import pytest\n" + RIGHT, "failed"),
    "programs of the system": ("import os\n" + inside("os.execv('/bin/sh', ['sh'])"), "failed"),
    # programs that are only wrong
    "no Python": ("def double(x:\n", "failed"),
    "another name": ("def triple(x):\n    return 2 * x\n", "failed"),
    "nothing": ("", "failed"),
    "a null": ("def double(x):\n    return 2 * x\n\x00", "failed"),
    "half a character": ("def double(x):\n    '\ud800'\n    return 2 * x\n", "failed"),
    "right": (RIGHT, "passed"),
    "wrong by a constant": (WRONG, "failed"),
    "right with a main part": (RIGHT + "if __name__ == '__main__':\n    print(double(int(input())))\n", "passed"),
}  # fmt: skip


@pytest.fixture(scope="module")
def outcomes(sandbox: Sandbox) -> dict[str, Outcome]:
    programs = [Program(source, TESTS, "double") for source, _ in CASES.values()]
    return dict(zip(CASES, sandbox.run(programs), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_a_program_ends_as_it_has_to(case: str, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[case]
    assert outcome.status == CASES[case][1], outcome


@pytest.mark.full
def test_an_endless_loop_ends_at_its_processor_time_whatever_it_catches(sandbox: Sandbox) -> None:
    loop = inside("while True: pass")
    swallow = (
        "def double(x):\n    while True:\n        try:\n            while True: pass\n"
        "        except BaseException: pass\n"
    )
    blocking = "import signal\nsignal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n" + loop
    for outcome in sandbox.run([Program(source, TESTS, "double") for source in (loop, swallow, blocking)]):
        assert outcome.status == "timeout", outcome
        assert outcome.cpu_seconds < 1.5
        assert "1 s of processor time" in outcome.why


def test_a_program_that_sleeps_ends_at_the_wall_clock() -> None:
    sandbox = Sandbox(Limits(wall_seconds=1.5))
    try:
        source = "import time\n" + inside("time.sleep(1000)")
        outcomes = sandbox.run([Program(source, TESTS, "double"), Program(RIGHT, TESTS, "double")])
    finally:
        sandbox.close()
    assert [outcome.status for outcome in outcomes] == ["timeout", "passed"]
    assert outcomes[0].cpu_seconds < 0.5


def test_the_host_is_unchanged_by_programs_that_delete_and_write(sandbox: Sandbox, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    kept.write_text("kept")
    here = Path.cwd() / "made-by-a-program"
    library = Path(os.__file__).parent
    attempts = (
        f"os.remove({str(kept)!r})",
        f"shutil.rmtree({str(tmp_path)!r})",
        f"open({str(tmp_path / 'new')!r}, 'w')",
        f"open({str(here)!r}, 'w')",
        f"os.chmod({sys.executable!r}, 0)",
        f"os.remove({str(library / 'os.py')!r})",
        f"shutil.rmtree({str(library / 'json')!r})",
    )
    there = sorted(path.name for path in (library / "json").iterdir())
    programs = [
        Program(
            f"import os, shutil\n{inside(f'try: {attempt}')}".replace(
                "    return", "    except OSError: pass\n    return"
            ),
            TESTS,
            "double",
        )
        for attempt in attempts
    ]
    assert [outcome.status for outcome in sandbox.run(programs)] == ["passed"] * len(attempts)
    assert kept.read_text() == "kept"
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert not here.exists()
    assert os.access(sys.executable, os.X_OK)
    assert sorted(path.name for path in (library / "json").iterdir()) == there


HUNT = """
import gc, os, sys
def texts():
    frame = sys._getframe()
    while frame:
        yield "frame", repr(frame.f_locals)
        yield "frame", repr(frame.f_code.co_consts)
        frame = frame.f_back
    for each in gc.get_objects():
        if type(each) in (list, tuple, set) and len(each) < 1000:
            yield "memory", " ".join([inner for inner in each if type(inner) is str])
    for name, module in list(sys.modules.items()):
        yield "module", " ".join([each for each in vars(module).values() if type(each) is str])
    yield "environment", repr(os.environ)
    yield "arguments", repr(sys.orig_argv)
    for fd in (0, 1, 2, *range(4, 64)):
        try: yield "descriptor", os.read(fd, 1 << 16).decode(errors="replace")
        except OSError: pass
    for top in ("/tmp", "/dev/shm", "/proc", "/run", "/var", "/home", "/root", "/work", "/etc", "/"):
        for path, folders, files in os.walk(top):
            folders[:] = [each for each in folders if path != "/" and not each.startswith("python3")]
            for each in files:
                full = os.path.join(path, each)
                if os.path.isfile(full) and os.path.getsize(full) < 1 << 20:
                    try: yield "file", full + open(full, errors="replace").read()
                    except OSError: pass
def hunt(hay, first, second):
    needle = first + second
    del first, second
    found, hays = set(), False
    for where, text in texts():
        if needle in text.replace(repr(needle), ""): found.add(where)
        hays = hays or hay in text
    return [sorted(found), hays]
"""


def test_a_program_finds_neither_its_tests_nor_a_nonce(sandbox: Sandbox) -> None:
    """It looks through its frames, objects, modules, descriptors and files; something that is there it does find."""
    tests = "expected = 'needle-in-the-tests'\nassert hunt('hay-hay', 'needle-', 'in-the-tests') == [[], True]\n"
    (outcome,) = sandbox.run([Program(HUNT, tests, "hunt")])
    assert outcome.status == "passed", outcome


def test_a_program_sees_no_process_but_its_own_and_an_environment_without_secrets(sandbox: Sandbox) -> None:
    os.environ["DARE_TEST_SECRET"] = "secret"
    source = (
        "import os\ndef look():\n    return [os.getpid(), os.getppid(), os.path.exists('/proc/1'), sorted(os.environ), "
        "os.getcwd(), os.listdir(), len(os.listdir('/'))]\n"
    )
    tests = (
        "pid, parent, proc, environment, folder, files, top = look()\n"
        "assert (pid, parent, proc, folder, files) == (1, 0, False, '/tmp', [])\n"
        "assert set(environment) <= {'PYTHONHASHSEED', 'LC_ALL', 'LC_CTYPE'}, environment\n"
    )
    (outcome,) = sandbox.run([Program(source, tests, "look")])
    del os.environ["DARE_TEST_SECRET"]
    assert outcome.status == "passed", outcome


RICH = """
from collections import Counter, OrderedDict, namedtuple, defaultdict
Point = namedtuple("Point", "x y")
class Node:
    def __init__(self, value): self.value, self.next = value, None
    def total(self): return self.value + (self.next.total() if self.next else 0)
def plain(): return [None, True, 1, -2**70, 1.5, "ä\\ud800", b"\\xff"]
def nested(): return [(1, [2]), {3}, frozenset({4}), {"a": (5,)}, 1j, range(3)]
def derived(): return [Counter("aab"), Point(1, 2), OrderedDict(a=1), defaultdict(int, b=2)]
def floats(): return [float("inf"), float("-inf"), 1e300, -0.0, float("nan")]
def adder(n): return lambda x: x + n
def squares(n): return (i * i for i in range(n))
def echo(x): return x
def fails(): raise FileNotFoundError("nothing here")
def stops(): raise StopIteration
def head(nodes): return nodes[0]
def keys(): return {"a": 1}.keys()
"""
RICH_TESTS = """
assert plain() == [None, True, 1, -2**70, 1.5, "ä\\ud800", b"\\xff"]
assert [type(each) for each in plain()] == [type(None), bool, int, int, float, str, bytes]
assert nested() == [(1, [2]), {3}, frozenset({4}), {"a": (5,)}, 1j, range(3)]
assert [type(each) for each in nested()] == [tuple, set, frozenset, dict, complex, range]
assert derived() == [{"a": 2, "b": 1}, (1, 2), {"a": 1}, {"b": 2}]
assert floats()[:4] == [float("inf"), float("-inf"), 1e300, 0.0] and floats()[4] != floats()[4]
assert adder(2)(3) == 5
assert list(squares(4)) == [0, 1, 4, 9]
assert sorted(keys()) == ["a"] and len(keys()) == 1
for value in (0, "", [], {}, [{"a": [1, (2, {3})]}], 10**5000, float("inf")):
    assert echo(value) == value and type(echo(value)) is type(value)
node = Node(1)
node.next = Node(2)
assert node.total() == 3 and node.next.value == 2
assert head([node]) == node and head([node]) != node.next
assert "Node" in repr(node)
try:
    fails()
except OSError as error:
    assert "nothing here" in str(error)
else:
    raise AssertionError
try:
    all(map(lambda _: stops(), [1]))
except RuntimeError:
    pass
else:
    raise AssertionError("a loop of the tests was ended by the program")
"""


def test_values_objects_and_exceptions_arrive_as_they_are(sandbox: Sandbox) -> None:
    (outcome,) = sandbox.run([Program(RICH, RICH_TESTS, "plain")])
    assert outcome.status == "passed", outcome


def test_a_value_that_cannot_be_sent_and_broken_tests_are_errors_and_no_verdict(sandbox: Sandbox) -> None:
    unsent = "import decimal\nassert double(decimal.Decimal(2)) == 4\n"
    broken = "assert double(2 == 4\n"
    missing = "import no_such_module\nassert double(2) == 4\n"
    outcomes = sandbox.run([Program(RIGHT, tests, "double") for tests in (unsent, broken, missing)])
    assert [outcome.status for outcome in outcomes] == ["error"] * 3
    (own,) = sandbox.run([Program("import no_such_module\n" + RIGHT, TESTS, "double")])
    assert own.status == "failed"


def test_the_prefix_is_known_to_the_program_and_the_tests_keep_their_own(sandbox: Sandbox) -> None:
    prefix = "from typing import List\ndef inverse(x):\n    return x / 2\n"
    tests = "assert inverse(double(2)) == 2\n"
    uses = "from __future__ import annotations\ndef double(x: List[int]):\n    return inverse(x) * 4\n"
    replaces = "def inverse(x):\n    return 2\n" + WRONG
    outcomes = sandbox.run([Program(source, tests, "double", prefix) for source in (uses, replaces)])
    assert [outcome.status for outcome in outcomes] == ["passed", "failed"]


def test_a_name_of_python_is_the_programs_only_where_it_is_asked_for(sandbox: Sandbox) -> None:
    source = "def sum(a, b):\n    return 6\ndef abs(x):\n    return 0\n"
    programs = [Program(source, tests, "sum") for tests in ("assert sum(10, 15) == 6", "assert abs(sum(1, 2)) == 0")]
    assert [outcome.status for outcome in sandbox.run(programs)] == ["passed", "failed"]


def test_sets_have_one_order_and_tests_that_draw_numbers_draw_the_same(sandbox: Sandbox) -> None:
    source = "def order(n):\n    return [list({'a', 'b', 'c', 'd', 'e'}), n]\n"
    tests = "import random\nassert order(random.random()) == 0, order(random.random())\n"
    said = {outcome.why for outcome in sandbox.run([Program(source, tests, "order")] * 4)}
    assert len(said) == 1


def test_a_canary_that_comes_out_wrong_voids_the_batch() -> None:
    """As when an import of the preamble is not there: every program would fail, and nobody would be told."""
    sandbox = Sandbox(QUICK)
    try:
        preamble = ("import no_such_module",)
        outcomes = sandbox.run(
            [Program(RIGHT, TESTS, "double", preamble=preamble), Program(WRONG, TESTS, "double", preamble=preamble)]
        )
        assert [outcome.status for outcome in outcomes] == ["error", "error"]
        assert "known came out failed ModuleNotFoundError" in outcomes[0].why
        assert sandbox.run([Program(RIGHT, TESTS, "double")])[0].status == "passed"
    finally:
        sandbox.close()


def test_a_batch_over_its_time_and_a_killed_supervisor_are_errors_and_the_next_batch_runs() -> None:
    sandbox = Sandbox(QUICK, workers=1)
    try:
        sleeps = Program("import time\n" + inside("time.sleep(20)"), TESTS, "double")
        outcomes = sandbox.run([Program(RIGHT, TESTS, "double"), sleeps], seconds=2.5)
        assert [outcome.status for outcome in outcomes] == ["passed", "error"]
        assert outcomes[1].why == "the batch went over its time"
        assert sandbox.run([Program(RIGHT, TESTS, "double")])[0].status == "passed"
        assert sandbox._process is not None
        os.killpg(sandbox._process.pid, signal.SIGKILL)
        assert sandbox.run([Program(RIGHT, TESTS, "double")])[0].status in ("passed", "error")
        assert sandbox.run([Program(RIGHT, TESTS, "double")])[0].status == "passed"
    finally:
        sandbox.close()


def descendants(pid: int) -> set[int]:
    """All processes below this one."""
    found: set[int] = set()
    for path in Path(f"/proc/{pid}/task").glob("*/children"):
        for child in map(int, path.read_text().split()):
            found |= {child} | descendants(child)
    return found


def test_no_process_is_left_after_a_batch_nor_after_the_end() -> None:
    before = descendants(os.getpid())
    sandbox = Sandbox(QUICK)
    try:
        sandbox.run([Program(RIGHT, TESTS, "double")])
        idle = descendants(os.getpid())
        sources = [source for source, _ in list(CASES.values())[:10]]
        sandbox.run([Program(source, TESTS, "double") for source in sources])
        assert descendants(os.getpid()) == idle
        assert len(idle - before) == 2
    finally:
        sandbox.close()
    assert descendants(os.getpid()) == before


@pytest.mark.full
def test_no_process_is_left_after_two_hundred_programs(sandbox: Sandbox) -> None:
    sandbox.run([Program(RIGHT, TESTS, "double")])
    before = descendants(os.getpid())
    sources = [source for source, status in CASES.values() if status != "timeout"] * 4
    outcomes = sandbox.run([Program(source, TESTS, "double") for source in sources[:200]])
    assert len(outcomes) == 200
    assert descendants(os.getpid()) == before


def test_the_probe_notices_where_a_program_is_not_apart() -> None:
    """The sandbox asks it before anything else; here it is asked without one, in a process of the host."""
    code = (
        "import socket, sys\nexec(sys.argv[1])\n"
        "with socket.create_server(('127.0.0.1', 0)) as host: print(probe(sys.argv[2], host.getsockname()[1]))"
    )
    said = subprocess.run(
        (sys.executable, "-c", code, PROBE, __file__), capture_output=True, text=True, check=True
    ).stdout.strip()
    assert said in ("[]", "['nothing to write to']")  # Python's own folder may not be ours
    assert len(HELD) == 5


PARENT = """
import sys
from dare.sandbox import Program, Sandbox
sandbox = Sandbox()
sandbox.run([Program("def f(): return 1", "assert f() == 1", "f")])
print(sandbox._process.pid, flush=True)
sandbox.run([Program("import time\\ndef f(): time.sleep(100)", "assert f() == 1", "f")])
"""


def test_the_sandbox_ends_with_the_process_that_asked_even_when_that_is_killed() -> None:
    with subprocess.Popen(
        (sys.executable, "-c", PARENT),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "runners")},
    ) as parent:
        assert parent.stdout is not None
        supervisor = int(parent.stdout.readline())
        below = descendants(supervisor)
        assert below
        parent.kill()
    deadline = time.monotonic() + 10
    while any(Path(f"/proc/{pid}").exists() for pid in (supervisor, *below)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not [pid for pid in (supervisor, *below) if Path(f"/proc/{pid}").exists()]


REFUSED = """
from dare.sandbox import NoSandboxError, Program, Sandbox
try:
    Sandbox().run([Program("open('ran', 'w')", "", "")])
except NoSandboxError as error:
    print(error)
"""


def test_nothing_is_run_where_no_namespace_can_be_had(tmp_path: Path) -> None:
    unshare = shutil.which("unshare")
    if unshare is None:
        pytest.skip("needs `unshare` to make such a place")
    without = 'echo 0 >/proc/sys/user/max_user_namespaces; exec "$@"'
    said = subprocess.run(
        (unshare, "--user", "--map-root-user", "sh", "-c", without, "sh", sys.executable, "-c", REFUSED),
        cwd=tmp_path, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY / "runners")},
    ).stdout  # fmt: skip
    assert "cannot keep a program apart, so none is run" in said
    assert list(tmp_path.iterdir()) == []
    here = [path for path in Path("/proc").glob("[0-9]*/cwd") if path.exists() and path.resolve() == tmp_path]
    assert here == []  # nor is anything left of the attempt


@pytest.mark.full
def test_a_fork_of_the_process_asks_a_sandbox_of_its_own(sandbox: Sandbox) -> None:
    sandbox.run([Program(RIGHT, TESTS, "double")])
    code = (
        "import os, sys\nfrom dare.sandbox import Program, Sandbox\nsandbox = Sandbox()\n"
        "program = Program('def f(): return 1', 'assert f() == 1', 'f')\n"
        "sandbox.run([program])\nchild = os.fork()\n"
        "if not child:\n    said = sandbox.run([program])[0].status\n    sandbox.close()\n"
        "    os._exit(said != 'passed')\n"
        "assert os.waitpid(child, 0)[1] == 0\nassert sandbox.run([program])[0].status == 'passed'\nsandbox.close()\n"
    )
    subprocess.run(
        (sys.executable, "-c", code), check=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY / "runners")}
    )


def test_the_tests_import_nothing_that_a_program_wrote(tmp_path: Path) -> None:
    """Even where this package lies below the folder that a program can write to."""
    package = tmp_path / "dare"
    shutil.copytree(REPOSITORY / "runners/dare/sandbox", package / "sandbox")
    (package / "__init__.py").touch()
    folders = [str(tmp_path), str(package / "sandbox")]
    source = (
        f"import os\nfor folder in {folders!r}:\n    os.makedirs(folder, exist_ok=True)\n"
        "    for name in ('fractions', 'colorsys'):\n        with open(f'{folder}/{name}.py', 'w') as f: f.write('')\n"
        + RIGHT
    )
    tests = f"import fractions, colorsys\nfractions.Fraction, colorsys.rgb_to_hsv\n{TESTS}"
    code = (
        "import sys\nfrom dare.sandbox import Program, Sandbox\nsandbox = Sandbox()\n"
        "print(sandbox.run([Program(sys.argv[1], sys.argv[2], 'double')])[0])\nsandbox.close()\n"
    )
    said = subprocess.run(
        (sys.executable, "-c", code, source, tests), capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    ).stdout  # fmt: skip
    assert "status='passed'" in said
