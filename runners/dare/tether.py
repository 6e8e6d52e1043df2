"""`python -m dare.tether FD MODULE WORDS...` runs a module that ends, with its own children, when its parent does.

FD is the reading end of a pipe whose writing end only the parent has. However the parent ends, also by SIGKILL, the
pipe closes, and the process group of this process is killed.
"""

from __future__ import annotations

import os
import runpy
import signal
import sys
import threading


def hold(descriptor: int) -> None:
    """Wait for the end of the parent, in a thread, and follow it."""

    def wait() -> None:
        while os.read(descriptor, 1):
            pass
        if os.getpgrp() == os.getpid():
            os.killpg(os.getpgrp(), signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, name="tether", daemon=True).start()


if __name__ == "__main__":
    _, number, module, *words = sys.argv
    os.set_inheritable(int(number), False)
    hold(int(number))
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
