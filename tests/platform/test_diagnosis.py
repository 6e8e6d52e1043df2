"""`dare doctor` compares what is installed with what is declared. The rest of it is in test_cli."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path


def test_a_library_outside_its_range_is_bad_and_comes_with_the_command_that_mends_it(tmp_path: Path) -> None:
    record = tmp_path / "transformers-4.46.2.dist-info" / "METADATA"
    record.parent.mkdir()
    record.write_text("Metadata-Version: 2.1\nName: transformers\nVersion: 4.46.2\n")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "DARE_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "dare_platform", "doctor", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1
    found = {finding["subject"]: finding for finding in json.loads(done.stdout)}
    assert found["transformers"]["state"] == "bad"
    assert found["transformers"]["finding"].startswith("4.46.2, DARE needs >=")
    assert found["transformers"]["remedy"].startswith("pip install 'transformers>=")
    assert found["torch"]["state"] == "ok"
