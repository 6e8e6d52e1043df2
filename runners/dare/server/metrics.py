"""What a server counts, as Prometheus text."""

from __future__ import annotations

import threading
from collections import Counter, defaultdict

BUCKETS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
"""Seconds. A decode on a laptop takes hundredths of one, a long one of a large model minutes."""


class Metrics:
    """Counters that any thread may raise."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._within: Counter[float] = Counter()
        self._totals: defaultdict[str, float] = defaultdict(float)
        self._unreported: set[str] = set()
        """Counters of which a part is not known: a total of the rest would be wrong, so they are left out."""

    def request(self, endpoint: str, status: int, seconds: float) -> None:
        """A request has been answered, or given up by its client (status 499)."""
        with self._lock:
            self._requests[endpoint, status] += 1
            self._totals["request_seconds"] += seconds
            self._within.update(bound for bound in BUCKETS if seconds <= bound)

    def tokens(self, prompt: int, completion: int) -> None:
        """Tokens of an answered request."""
        with self._lock:
            self._totals["prompt_tokens"] += prompt
            self._totals["completion_tokens"] += completion

    def batch(self, rows: int, forwards: int | None, seconds: float) -> None:
        """The model has worked on some rows together; None where nobody knows how many forwards it took."""
        with self._lock:
            self._totals["batches"] += 1
            self._totals["batch_rows"] += rows
            if forwards is None:
                self._unreported.add("forwards")
            self._totals["forwards"] += forwards or 0
            self._totals["model_seconds"] += seconds

    def text(self, waiting: int, running: int) -> str:
        """Exposition format 0.0.4."""
        with self._lock:
            lines = [
                "# HELP dare_requests_total Requests by endpoint and status.",
                "# TYPE dare_requests_total counter",
            ]
            for (endpoint, status), count in sorted(self._requests.items()):
                lines.append(f'dare_requests_total{{endpoint="{endpoint}",status="{status}"}} {count}')
            total = sum(self._requests.values())
            lines += ["# HELP dare_request_seconds Time to answer.", "# TYPE dare_request_seconds histogram"]
            lines += [f'dare_request_seconds_bucket{{le="{bound}"}} {self._within[bound]}' for bound in BUCKETS]
            lines += [
                f'dare_request_seconds_bucket{{le="+Inf"}} {total}',
                f"dare_request_seconds_sum {self._totals['request_seconds']:g}",
                f"dare_request_seconds_count {total}",
            ]
            for name, help_text in ((name, said) for name, said in COUNTERS.items() if name not in self._unreported):
                lines += _one(f"dare_{name}_total", "counter", help_text, self._totals[name])
        lines += _one("dare_queue_length", "gauge", "Rows that wait.", waiting)
        lines += _one("dare_rows_running", "gauge", "Rows that the model works on.", running)
        return "\n".join(lines) + "\n"


COUNTERS = {
    "prompt_tokens": "Prompt tokens of answered requests.",
    "completion_tokens": "Completion tokens of answered requests.",
    "forwards": "Forwards of one row each (NFE).",
    "batches": "Times that the model worked on rows together.",
    "batch_rows": "Rows in those batches.",
    "model_seconds": "Seconds that the model worked.",
}


def _one(name: str, kind: str, help_text: str, value: float) -> list[str]:
    return [f"# HELP {name} {help_text}", f"# TYPE {name} {kind}", f"{name} {value:.10g}"]
