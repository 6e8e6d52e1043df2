"""Programs that a run may be, each as a text: they go wild until somebody ends them."""

from __future__ import annotations

SLEEPER = "86399.75"
"""Seconds that nobody else sleeps."""

FORKS = """
import os
while True:
    try:
        os.fork()
    except OSError:
        pass
"""

MEMORY = """
held = []
while True:
    held.append(bytearray(4 * 2**20))
"""

MEMORY_OF_CHILDREN = """
import os, time
for _ in range(6):
    if os.fork() == 0:
        held = []
        while True:
            held.append(bytearray(4 * 2**20))
            time.sleep(0.01)
while True:
    os.wait()
"""

LOOP = """
while True:
    pass
"""

FLOOD = """
import os
while True:
    os.write(1, b"x" * 65536)
"""

DISK = """
import time
with open("tmp/big", "wb") as file:
    while True:
        file.write(bytes(2**20))
        file.flush()
        time.sleep(0.01)
"""

MANY_FILES = """
import time
n = 0
while True:
    n += 1
    open(f"tmp/{n}", "w").close()
    if n % 1000 == 0:
        time.sleep(0.05)
"""

DEEP = """
import os, time
os.chdir("tmp")
for _ in range(1500):
    os.mkdir("d" * 100)
    os.chdir("d" * 100)
time.sleep(60)
"""

TMP_FILES = """
n = 0
while True:
    n += 1
    open(f"/tmp/{n}", "w").close()
"""

STOPS_THE_FIRST = """
import ctypes, time
print(ctypes.CDLL(None).ptrace(16, 1, 0, 0))
time.sleep(1)
"""

KILLS_ALL = """
import os, signal
os.kill(1, signal.SIGKILL)
os.kill(1, signal.SIGTERM)
os.kill(-1, signal.SIGKILL)
"""

DETACHES = f"""
import os
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execve("/bin/sleep", ["sleep", "{SLEEPER}"], {{}})
    os._exit(0)
os.wait()
"""

DEAF = """
import signal, time
for one in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
    signal.signal(one, signal.SIG_IGN)
print("deaf", flush=True)
while True:
    time.sleep(1)
"""

TRAPS = """
import os
for name in ("result.json", "events.jsonl"):
    os.mkfifo(name)
os.mkdir("output.log")
os.symlink("/etc", "model")
os.symlink("/", "checkpoint")
os.chmod("home", 0)
"""
