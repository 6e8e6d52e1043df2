"""`python -m dare run DIRECTORY` that runs the entry's file and nothing else: whatever a runner would keep it from."""

import runpy
import sys

directory = sys.argv[2]
sys.argv[1:] = [directory]
runpy.run_path(f"{directory}/entry/algorithm.py", run_name="__main__")
