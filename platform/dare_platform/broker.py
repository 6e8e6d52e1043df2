"""Celery as an alarm bell: a message wakes a worker that would have looked by itself a little later.

No message carries a job, a state or a result, so it may be lost, doubled or late without harm. `serve` runs Celery
with the worker in a thread beside it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Sequence

from celery import Celery
from celery.exceptions import CeleryError
from kombu import Queue
from kombu.exceptions import KombuError

from dare.catalog import families
from dare_platform.database import open_database
from dare_platform.errors import BrokerSettingsError, PlatformError
from dare_platform.launcher import Launcher
from dare_platform.models import Device
from dare_platform.settings import Settings
from dare_platform.worker import Worker

CONTROL = "control"
WAKE = "dare.wake"

ASSERTED: dict[str, object] = {
    "result_backend": None,  # state lives in SQL
    "task_ignore_result": True,
    "task_acks_late": False,  # a message is a hint: acknowledged at once
    "task_reject_on_worker_lost": False,
    "worker_prefetch_multiplier": 1,
    "worker_concurrency": 1,
    "worker_pool": "threads",
    "task_time_limit": None,  # deadlines and kills are the supervisor's
    "task_soft_time_limit": None,
    "worker_send_task_events": False,
    "broker_connection_retry_on_startup": True,
    "worker_cancel_long_running_tasks_on_connection_loss": False,
    "worker_hijack_root_logger": False,
    "task_default_queue": CONTROL,
    "task_create_missing_queues": False,
    "task_serializer": "json",
    "accept_content": ["json"],
    "timezone": "UTC",
    "enable_utc": True,
}
PUBLISH_TRIES = {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}


class BrokerAwayError(PlatformError, ConnectionError):
    """The broker did not take a message."""


def make_app(broker_url: str | None, on_wake: Callable[[], None] = lambda: None) -> Celery:
    """The Celery app with the settings that our guarantees stand on. `on_wake` is what its one task does."""
    app = Celery("dare", broker=broker_url or "memory://", set_as_current=False)
    app.conf.update(ASSERTED)
    app.conf.task_queues = [Queue(name) for name in (*(f"family_{family}" for family in families()), CONTROL)]
    app.conf.broker_transport_options = {"socket_timeout": 5, "socket_connect_timeout": 5}

    def wake(_run_id: str) -> None:
        """Somebody has work: look now instead of at the next poll."""
        on_wake()

    app.task(name=WAKE, shared=False)(wake)  # shared ones belong to every app of the process
    return app


def assert_settings(app: Celery) -> None:
    """BrokerSettingsError for the first effective setting that is not ours: an environment may override any."""
    for name, wanted in ASSERTED.items():
        found = app.conf[name]
        if found != wanted:
            raise BrokerSettingsError(f"Celery's {name} is {found!r}; DARE needs {wanted!r}")


def assert_without_torch() -> None:
    """BrokerSettingsError if this process, which supervises runs, has loaded what only runs may load."""
    if "torch" in sys.modules:
        raise BrokerSettingsError("torch is loaded in the worker process; only runs may load it")


class CeleryPublisher:
    """Sends wake-up calls through an app's broker."""

    def __init__(self, app: Celery) -> None:
        self._app = app

    def __call__(self, run_id: str, queue: str) -> None:
        """See `outbox.Publisher`."""
        try:
            self._app.send_task(WAKE, args=(run_id,), queue=queue, retry_policy=PUBLISH_TRIES)
        except (KombuError, CeleryError, OSError) as error:
            raise BrokerAwayError(str(error)) from error


def serve(
    settings: Settings, families: Sequence[str], device: Device = "cpu", launcher: Launcher | None = None
) -> None:
    """Poll and listen until SIGTERM or Ctrl-C: the worker in a thread, Celery in this one."""
    broker = make_app(settings.broker_url, on_wake=lambda: worker.wake())
    assert_settings(broker)
    assert_without_torch()
    worker = Worker(settings, families, device=device, launcher=launcher, publish=CeleryPublisher(broker))
    with open_database(settings) as database:  # says now what is wrong with it or with the device, not in a thread
        worker.look_at_device(database)

    def work() -> None:
        try:
            worker.run()
        finally:
            if not worker.is_stopping:  # it failed: a bell without a worker helps nobody
                os.kill(os.getpid(), signal.SIGTERM)

    thread = threading.Thread(target=work, name="dare-worker")
    thread.start()
    queues = ",".join((*(f"family_{family}" for family in families), CONTROL))
    options = ("--queues", queues, "--loglevel", "WARNING", "--without-gossip", "--without-mingle")
    try:
        broker.worker_main(["worker", *options])
    finally:
        worker.stop()
        thread.join()


app = make_app(Settings.from_environment().broker_url)
