# ruff: noqa: PTH101, PTH104, PTH108, PTH110, PTH112, PTH115, PTH116, PTH123, PTH208, PTH211
"""Tries from within a run what no run may do, and writes what came of each case: what was reached, and what said no.

Standard library only. Every case is a child process of its own, so that one that is killed says so. It runs as a
submitted entry would, as the container's user, in the job directory.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import json
import os
import platform
import resource
import signal
import socket
import stat
import struct
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

JOB = Path(sys.argv[1])
WHERE: dict[str, Any] = json.loads((JOB / "home" / "where.json").read_text())
"""Places that only the test knows: a real attacker would have to guess them."""
LIBC = ctypes.CDLL(None, use_errno=True)
ARM = platform.machine() in ("aarch64", "arm64")
CALLS = {
    "mount": (165, 40), "umount2": (166, 39), "pivot_root": (155, 41), "chroot": (161, 51), "unshare": (272, 97),
    "setns": (308, 268), "clone3": (435, 435), "ptrace": (101, 117), "init_module": (175, 105),
    "finit_module": (313, 273), "delete_module": (176, 106), "kexec_load": (246, 104), "add_key": (248, 217),
    "request_key": (249, 218), "keyctl": (250, 219), "bpf": (321, 280), "perf_event_open": (298, 241),
    "userfaultfd": (323, 282), "io_uring_setup": (425, 425), "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264), "process_vm_readv": (310, 270), "clock_settime": (227, 112),
    "settimeofday": (164, 170), "sethostname": (170, 161), "swapon": (167, 224), "reboot": (169, 142),
    "syslog": (103, 116), "acct": (163, 89), "quotactl": (179, 60), "setuid": (105, 146), "setgid": (106, 144),
    "capset": (126, 91), "fsopen": (430, 430), "open_tree": (428, 428), "fanotify_init": (300, 262),
    "lookup_dcookie": (212, 18), "kcmp": (312, 272), "nfsservctl": (180, 42),
}  # fmt: skip
"""Numbers on x86-64 and on arm64."""

Case = Callable[[], None]
CASES: dict[str, Case] = {}
reached: list[str] = []
saw: list[str] = []


def case(name: str) -> Callable[[Case], Case]:
    def add(attempt: Case) -> Case:
        CASES[name] = attempt
        return attempt

    return add


def attempt(what: str, do: Callable[[], object]) -> object:
    """Do something that must be refused."""
    try:
        found = do()
    except OSError as error:
        saw.append(f"{what}: {errno.errorcode.get(error.errno or 0, str(error))}")
        return None
    except (MemoryError, ValueError) as error:
        saw.append(f"{what}: {error}")
        return None
    reached.append(f"{what}: {str(found)[:200]}")
    return found


def call(name: str, *arguments: Any) -> int:
    """A system call by its number."""
    result: int = LIBC.syscall(ctypes.c_long(CALLS[name][ARM]), *arguments)
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), name)
    return result


def calls(*names: str, **arguments: tuple[Any, ...]) -> None:
    for name in names:
        attempt(name, lambda name=name: call(name, *arguments.get(name, (0, 0, 0, 0, 0))))


def text(content: str) -> ctypes.c_char_p:
    return ctypes.c_char_p(content.encode())


def write(path: str | Path) -> object:
    with open(path, "r+b" if os.path.exists(path) and not os.path.isdir(path) else "wb") as file:
        return file.write(b"0")


def read(path: str | Path) -> bytes:
    with open(path, "rb") as file:
        return file.read(4096)


def status(word: str) -> str:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith(f"{word}:"))


# --- reading --------------------------------------------------------------------------------------------------------


@case("reads the directory of another run")
def _() -> None:
    for path in WHERE["other_jobs"]:
        attempt(path, lambda path=path: read(path))
        attempt(f"list {Path(path).parent}", lambda path=path: os.listdir(Path(path).parent))
    for up in ("..", "../..", "../../..", "../../../jobs"):
        names = set(os.listdir(JOB / up)) if (JOB / up).is_dir() else set()
        if names & set(WHERE["names_of_others"]):
            reached.append(f"{up}: {sorted(names)}")
    saw.append(f"above the job directory lies the image's own root: {sorted(os.listdir(JOB.parent))[:4]} ...")


@case("reads the weights of another run")
def _() -> None:
    for path in WHERE["weights"]:
        attempt(path, lambda path=path: read(path))


@case("reads the database")
def _() -> None:
    for path in WHERE["databases"]:
        attempt(path, lambda path=path: read(path))


@case("reads a test split")
def _() -> None:
    for path in WHERE["test_splits"]:
        attempt(path, lambda path=path: read(path))
    data = os.environ.get("DARE_DATA")
    there = sorted(str(path) for path in Path(data).rglob("*")) if data else []
    saw.append(f"DARE_DATA is {data}, which holds {len(there)} files")
    reached.extend(path for path in there if "test" in Path(path).name)


@case("looks for a secret everywhere")
def _() -> None:
    needle = WHERE["canary_prefix"].encode()
    looked = 0
    for folder, folders, files in os.walk("/", followlinks=False):
        folders[:] = [] if folder in ("/proc", "/sys", "/usr") else folders
        for name in (*files, *folders):
            if WHERE["canary_prefix"] in name:
                reached.append(f"{folder}/{name}")
        for name in files:
            path = Path(folder, name)
            if path == JOB / "home" / "where.json":  # it says what to look for
                continue
            with suppress(OSError):
                if stat.S_ISREG(path.lstat().st_mode) and path.stat().st_size < 2**20:
                    looked += 1
                    if needle in path.read_bytes():
                        reached.append(str(path))
    saw.append(f"{looked} files outside /usr, none holds it")


@case("reads the environment of every process")
def _() -> None:
    needle = WHERE["canary_prefix"].encode()
    pids = sorted(int(name) for name in os.listdir("/proc") if name.isdigit())
    for pid in pids:
        for file in ("environ", "cmdline"):
            with suppress(OSError):
                if needle in read(f"/proc/{pid}/{file}"):
                    reached.append(f"/proc/{pid}/{file}")
    names = sorted(name for name in os.environ if not name.startswith(("DARE_", "HF_", "PYTHON", "OMP", "MKL")))
    saw.append(f"processes {pids}, all of the container; own environment has {', '.join(names)}")
    reached.extend(
        f"variable {name}" for name in os.environ if any(w in name for w in ("SECRET", "TOKEN", "URL", "PASS"))
    )


@case("reads processes of others")
def _() -> None:
    pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    uids = {os.stat(f"/proc/{pid}").st_uid for pid in pids}
    saw.append(f"{len(pids)} processes are visible, of users {sorted(uids)}; pid 1 is {read('/proc/1/cmdline')[:20]!r}")
    if len(pids) > 12:
        reached.append(f"processes {pids}")


@case("reads the kernel's memory and keys")
def _() -> None:
    for path in (
        "/proc/kcore",
        "/dev/mem",
        "/dev/kmem",
        "/dev/port",
        "/dev/kmsg",
        "/proc/kmsg",
        "/dev/sda",
        "/dev/vda",
    ):
        if (content := attempt(path, lambda path=path: read(path))) == b"":  # masked by an empty file
            reached.pop()
            saw.append(f"{path}: empty")
    for path in ("/proc/keys", "/proc/timer_list", "/proc/latency_stats", "/sys/firmware", "/proc/scsi", "/proc/acpi"):
        with suppress(OSError):
            content = os.listdir(path) if os.path.isdir(path) else read(path)
            if content:
                reached.append(f"{path}: {content!r:.80}")
    calls("syslog", syslog=(3, ctypes.create_string_buffer(4096), 4096))


# --- network --------------------------------------------------------------------------------------------------------


def connect(family: int, kind: int, address: Any) -> None:
    with socket.socket(family, kind) as one:
        one.settimeout(2)
        one.connect(address)
        one.send(b"x")


@case("opens a TCP connection")
def _() -> None:
    for address in (("1.1.1.1", 443), (WHERE["host_address"], WHERE["port"])):
        attempt(
            f"{address[0]}:{address[1]}", lambda address=address: connect(socket.AF_INET, socket.SOCK_STREAM, address)
        )
    attempt("the host's loopback", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", WHERE["port"])))
    attempt("IPv6", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("2606:4700:4700::1111", 443)))
    saw.append(f"interfaces: {[name for _, name in socket.if_nameindex()]}")
    reached.extend(name for _, name in socket.if_nameindex() if name.startswith(("eth", "en", "docker", "br", "veth")))


@case("sends a UDP packet")
def _() -> None:
    for address in (("8.8.8.8", 53), (WHERE["host_address"], WHERE["port"]), ("255.255.255.255", 67)):
        attempt(
            f"{address[0]}:{address[1]}", lambda address=address: connect(socket.AF_INET, socket.SOCK_DGRAM, address)
        )


@case("asks for a name")
def _() -> None:
    for name in ("example.com", "postgres", "redis", "launcher", "host.docker.internal"):
        attempt(name, lambda name=name: socket.getaddrinfo(name, 80))


@case("asks the cloud for credentials")
def _() -> None:
    attempt("169.254.169.254:80", lambda: connect(socket.AF_INET, socket.SOCK_STREAM, ("169.254.169.254", 80)))
    attempt("fd00:ec2::254", lambda: connect(socket.AF_INET6, socket.SOCK_STREAM, ("fd00:ec2::254", 80)))


@case("opens a raw, packet, vsock or netlink socket")
def _() -> None:
    attempt("raw", lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))
    attempt("packet", lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW, 0))
    attempt("vsock", lambda: connect(40, socket.SOCK_STREAM, (2, 22)))

    def new_device() -> None:  # RTM_NEWLINK for a dummy device
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as link:
            body = struct.pack("BxHiII", 0, 0, 0, 0, 0) + struct.pack("HH", 8, 3) + b"d0\0\0"
            link.send(struct.pack("IHHII", 16 + len(body), 16, 0x605, 1, 0) + body)
            answer = link.recv(4096)
            number = -struct.unpack_from("i", answer, 16)[0]
            if number:
                raise OSError(number, os.strerror(number))

    attempt("a device by netlink", new_device)


@case("talks to a host's abstract socket")
def _() -> None:
    attempt("abstract", lambda: connect(socket.AF_UNIX, socket.SOCK_STREAM, "\0" + WHERE["abstract"]))


@case("talks to the container engine")
def _() -> None:
    for path in (
        "/var/run/docker.sock",
        "/run/docker.sock",
        "/run/containerd/containerd.sock",
        "/run/podman/podman.sock",
    ):
        attempt(path, lambda path=path: connect(socket.AF_UNIX, socket.SOCK_STREAM, path))


# --- writing --------------------------------------------------------------------------------------------------------


@case("writes outside its directory")
def _() -> None:
    places = (
        "/x",
        "/etc/passwd",
        "/etc/ld.so.preload",
        "/usr/bin/env",
        "/opt/x",
        "/root/x",
        "/home/x",
        "/var/tmp/x",
        "/run/x",
    )
    for path in (*places, "/var/lib/x", "/lib/x", "/boot/x", "/srv/x", "/mnt/x", "/dev/x"):
        attempt(path, lambda path=path: write(path))


@case("patches the evaluator and the libraries")
def _() -> None:
    for folder in dict.fromkeys(path for path in sys.path if os.path.isdir(path)):
        attempt(f"{folder}/sitecustomize.py", lambda folder=folder: write(f"{folder}/sitecustomize.py"))
    attempt(os.__file__, lambda: write(os.__file__))
    attempt(sys.executable, lambda: write(os.path.realpath(sys.executable)))
    attempt("chmod", lambda: os.chmod(os.__file__, 0o666))


@case("changes the kernel's settings")
def _() -> None:
    settings = ("kernel/core_pattern", "kernel/modprobe", "vm/panic_on_oom", "fs/file-max")
    others = ("/proc/sysrq-trigger", "/proc/irq/0/smp_affinity", "/sys/kernel/uevent_helper", "/sys/power/state")
    for path in (*(f"/proc/sys/{setting}" for setting in settings), *others):
        attempt(path, lambda path=path: write(path))
    attempt("a lower oom_score_adj", lambda: Path("/proc/self/oom_score_adj").write_text("-1000"))


@case("lifts its own limits")
def _() -> None:
    for name in ("memory.limit_in_bytes", "pids.max", "memory.max", "cgroup.procs", "release_agent"):
        for folder in ("/sys/fs/cgroup", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/pids"):
            if os.path.exists(f"{folder}/{name}"):
                attempt(f"{folder}/{name}", lambda path=f"{folder}/{name}": write(path))
    for kind in (resource.RLIMIT_CORE, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE):
        attempt(f"limit {kind}", lambda kind=kind: resource.setrlimit(kind, (resource.RLIM_INFINITY,) * 2))
    attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20))
    attempt("real time", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(50)))
    saw.append(f"core limit {resource.getrlimit(resource.RLIMIT_CORE)}")


@case("overwrites its order, its source and what it is given")
def _() -> None:
    for name in ("entry/algorithm.py", "entry/new.py"):
        attempt(name, lambda name=name: write(JOB / name))
        attempt(f"unlink {name}", lambda name=name: os.unlink(JOB / name))
    attempt("rename entry", lambda: os.rename(JOB / "entry", JOB / "mine"))
    attempt("chmod entry", lambda: os.chmod(JOB / "entry", 0o777))
    (JOB / "job.json").write_text('{"forged": true}')
    saw.append("job.json can be written: nobody reads it after the start, the database has the order")


@case("links out of its directory")
def _() -> None:
    os.symlink("/etc/shadow", JOB / "tmp" / "soft")
    saw.append("a soft link to /etc/shadow is a name, which nobody outside follows")
    attempt("read through it", lambda: read(JOB / "tmp" / "soft"))
    for path in ("/etc/passwd", os.path.realpath(sys.executable), "/proc/self/mem", "/dev/null"):
        attempt(f"hard link to {path}", lambda path=path: os.link(path, JOB / "tmp" / "hard"))
    attempt("hard link to its source", lambda: os.link(JOB / "entry" / "algorithm.py", JOB / "tmp" / "source"))


@case("makes a file of a terabyte")
def _() -> None:
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    with (JOB / "tmp" / "sparse").open("wb") as file:
        attempt("truncate", lambda: file.truncate(2**40))  # without a byte of content: it takes nothing if it succeeds
        attempt("write at its end", lambda: os.pwrite(file.fileno(), b"x", 2**40 - 1))
        file.truncate(0)


@case("fills the shared memory")
def _() -> None:
    def fill() -> None:
        with open("/dev/shm/big", "wb") as file:
            for _ in range(WHERE["shm_mebibytes"] * 2):
                file.write(bytes(2**20))

    attempt("/dev/shm", fill)
    os.unlink("/dev/shm/big")


@case("fills /tmp")
def _() -> None:
    def fill() -> None:
        with open("/tmp/big", "wb") as file:
            for _ in range(WHERE["tmp_mebibytes"] * 2):
                file.write(bytes(2**20))

    attempt("/tmp", fill)
    os.unlink("/tmp/big")


@case("runs a program from /tmp")
def _() -> None:
    Path("/tmp/run").write_text("#!/bin/sh\nexit 0\n")
    os.chmod("/tmp/run", 0o755)
    attempt("execute", lambda: os.posix_spawn("/tmp/run", ["run"], {}))


# --- becoming more --------------------------------------------------------------------------------------------------


@case("becomes root")
def _() -> None:
    calls("setuid", "setgid", setuid=(0,), setgid=(0,))
    if os.getuid() == 0 or os.geteuid() == 0:
        reached.append("runs as root")
    saw.append(f"uid {os.getuid()}, NoNewPrivs {status('NoNewPrivs')}")
    if status("NoNewPrivs") != "1":
        reached.append("no_new_privs is not set")


@case("runs a setuid program")
def _() -> None:
    copy = JOB / "tmp" / "sh"
    copy.write_bytes(Path(os.path.realpath("/bin/sh")).read_bytes())
    copy.chmod(0o6755)
    programs: set[str] = set()
    for folder in ("/usr/bin", "/bin", "/usr/sbin"):
        programs |= {
            os.path.realpath(one.path)
            for one in os.scandir(folder)
            if one.is_file() and one.stat().st_mode & stat.S_ISUID
        }
    saw.append(f"{len(programs)} setuid programs in the image")
    for program in (str(copy), "/bin/su"):
        read_end, write_end = os.pipe()
        words = [program, "-c", "id -u"] if program == str(copy) else [program, "root", "-c", "id -u"]
        nothing = os.open(os.devnull, os.O_RDWR)
        child = os.posix_spawn(
            program, words, dict(os.environ),
            file_actions=[(os.POSIX_SPAWN_DUP2, *both) for both in ((nothing, 0), (write_end, 1), (nothing, 2))],
        )  # fmt: skip
        os.close(write_end)
        said = os.read(read_end, 100).decode().strip()
        os.waitpid(child, 0)
        saw.append(f"{Path(program).name} says {said or 'nothing'}")
        if said == "0":
            reached.append(f"{program} ran as root")


@case("raises its capabilities")
def _() -> None:
    header, wanted = struct.pack("II", 0x20080522, 0), struct.pack("IIIIII", *[2**32 - 1] * 6)
    calls("capset", capset=(ctypes.c_char_p(header), ctypes.c_char_p(wanted)))
    for name in ("CapEff", "CapPrm", "CapBnd", "CapAmb"):
        if int(status(name), 16):
            reached.append(f"{name} {status(name)}")
    saw.append(f"effective, permitted and bounding set {int(status('CapBnd'), 16)}; seccomp mode {status('Seccomp')}")
    if status("Seccomp") != "2":
        reached.append("no seccomp filter")


@case("mounts")
def _() -> None:
    place = text(str(JOB / "tmp"))
    calls(
        "mount", "umount2", "pivot_root", "fsopen", "open_tree",
        mount=(text("proc"), place, text("proc"), 0, None), umount2=(text("/proc"), 2), pivot_root=(place, place),
        fsopen=(text("proc"), 0), open_tree=(-100, text("/"), 1),
    )  # fmt: skip
    calls("chroot", chroot=(place,))


@case("makes namespaces of its own")
def _() -> None:
    for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("net", 0x40000000), ("pid", 0x20000000)):
        attempt(f"unshare {name}", lambda flag=flag: call("unshare", flag))
    attempt("clone3", lambda: call("clone3", ctypes.create_string_buffer(struct.pack("Q", 0x10000000) + bytes(80)), 88))
    attempt("setns", lambda: call("setns", os.open("/proc/1/ns/mnt", os.O_RDONLY), 0))


@case("makes device nodes")
def _() -> None:
    for name, kind, numbers in (
        ("null", stat.S_IFCHR, (1, 3)),
        ("mem", stat.S_IFCHR, (1, 1)),
        ("sda", stat.S_IFBLK, (8, 0)),
    ):
        for folder in (JOB / "tmp", Path("/tmp"), Path("/dev/shm")):
            attempt(
                f"{folder}/{name}", lambda p=folder / name, k=kind, n=numbers: os.mknod(p, k | 0o666, os.makedev(*n))
            )


@case("traces a process of the host")
def _() -> None:
    for pid in (WHERE["host_pid"], WHERE["host_pid"] + 100_000):
        attempt(f"attach to {pid}", lambda pid=pid: call("ptrace", 16, pid, 0, 0))
    attempt("open its memory", lambda: read(f"/proc/{WHERE['host_pid'] + 100_000}/mem"))


@case("loads a module or another kernel")
def _() -> None:
    calls("init_module", "finit_module", "delete_module", "kexec_load", init_module=(text("x"), 1, text("")),
          finit_module=(0, text(""), 0), delete_module=(text("x"), 0), kexec_load=(0, 0, 0, 0))  # fmt: skip


@case("uses the kernel's keyring")
def _() -> None:
    calls("add_key", "request_key", "keyctl", add_key=(text("user"), text("k"), text("v"), 1, -3),
          request_key=(text("user"), text("k"), None, 0), keyctl=(0, -3, 1))  # fmt: skip


@case("uses bpf, perf events, userfaultfd or io_uring")
def _() -> None:
    event = ctypes.create_string_buffer(struct.pack("IIQ", 1, 120, 0) + bytes(104))
    rings = ctypes.create_string_buffer(120)
    calls("bpf", "perf_event_open", "userfaultfd", "io_uring_setup", bpf=(0, ctypes.create_string_buffer(120), 120),
          perf_event_open=(event, 0, -1, -1, 0), userfaultfd=(0,), io_uring_setup=(4, rings))  # fmt: skip


@case("opens files by handle")
def _() -> None:
    calls(
        "open_by_handle_at",
        open_by_handle_at=(-100, ctypes.create_string_buffer(struct.pack("II", 8, 1) + bytes(8)), 0),
    )


@case("sets the clock, the name of the host, swap and accounting")
def _() -> None:
    now = ctypes.create_string_buffer(struct.pack("qq", 1, 0))
    names = ("clock_settime", "settimeofday", "sethostname", "swapon", "acct", "quotactl", "reboot")
    calls(*names, clock_settime=(0, now),
          settimeofday=(now, None), sethostname=(text("x"), 1), swapon=(text("/x"), 0), acct=(text("/x"),),
          quotactl=(0x800002, text("/"), 0, None), reboot=(0xFEE1DEAD, 672274793, 0, None))  # fmt: skip


@case("leaves a core file")
def _() -> None:
    child = os.fork()
    if child == 0:
        os.chdir(JOB / "tmp")
        os.abort()
    _, how = os.waitpid(child, 0)
    found = [str(path) for path in (JOB / "tmp").iterdir() if path.name.startswith("core")]
    reached.extend(found)
    if os.WCOREDUMP(how):
        reached.append("the kernel says that a core was dumped")
    saw.append(f"killed by signal {os.WTERMSIG(how)}, no core")


@case("types into a terminal")
def _() -> None:
    attempt("/dev/tty", lambda: fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), 0x5412, b"x"))
    attempt("/dev/console", lambda: fcntl.ioctl(os.open("/dev/console", os.O_RDWR), 0x5412, b"x"))
    for number in (0, 1, 2):
        attempt(f"descriptor {number}", lambda number=number: fcntl.ioctl(number, 0x5412, b"x"))


@case("looks for descriptors that were left open")
def _() -> None:
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            where = os.readlink(f"/proc/self/fd/{name}")
            if int(name) > 2 and not where.startswith(("/proc/", "pipe:")):
                reached.append(f"{name} -> {where}")
    saw.append("none but its own")


@case("uses shared memory and queues of others")
def _() -> None:
    for kind in ("shm", "sem", "msg"):
        rows = Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:]
        reached.extend(rows)
    saw.append("System V lists are empty: an IPC namespace of its own")


@case("kills the supervisor")
def _() -> None:
    os.kill(1, signal.SIGKILL)
    saw.append("SIGKILL to pid 1 of its namespace is ignored")
    attempt("a process of the host", lambda: os.kill(WHERE["host_pid"] + 100_000, signal.SIGKILL))


def carry_out(name: str, seconds: int = 20) -> dict[str, Any]:
    """One case in a child of its own."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            CASES[name]()
        except BaseException as error:  # whatever it is, it is what was seen
            saw.append(f"{type(error).__name__}: {error}")
            reached.append(f"the attempt itself failed: {error!r}")
        said = json.dumps({"reached": reached, "saw": saw}).encode()
        os.write(write_end, said[:60_000])
        os._exit(0)
    os.close(write_end)
    said = b""
    while piece := os.read(read_end, 65536):
        said += piece
    os.close(read_end)
    _, how = os.waitpid(child, 0)
    if os.WIFSIGNALED(how):
        return {"reached": [], "saw": [f"killed by signal {os.WTERMSIG(how)}"]}
    found: dict[str, Any] = json.loads(said)
    return found


if __name__ == "__main__":
    observed = {}
    for name in CASES:
        started = time.monotonic()
        observed[name] = {**carry_out(name), "seconds": round(time.monotonic() - started, 2)}
    (JOB / "home" / "observed.json").write_text(json.dumps(observed, indent=1))
    print(json.dumps(observed))  # noqa: T201
