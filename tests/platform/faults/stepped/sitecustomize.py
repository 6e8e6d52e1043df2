"""On PYTHONPATH: a process whose clock is off by as many seconds as the file DARE_TEST_CLOCK says now."""

import os
import time
from pathlib import Path

_true, _off = time.time, Path(os.environ["DARE_TEST_CLOCK"])
time.time = lambda: _true() + float(_off.read_text())
