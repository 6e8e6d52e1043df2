"""Faults, how each has to end, and the tests that prove it: what docs/studies/faults.md is made of."""

from __future__ import annotations

from dataclasses import dataclass

PLATFORM, FAULTS, WHOLE = "tests/platform", "tests/platform/faults", "tests/end_to_end"


@dataclass(frozen=True)
class Fault:
    """Something that must cost nothing, or only what is said."""

    name: str
    outcome: str
    tests: tuple[str, ...]
    """`file::function`; every parameter of a function counts."""


WORKER, KILLED = f"{PLATFORM}/test_worker.py", f"{FAULTS}/test_parts_killed.py"
AWAY, ODD, ONCE = (f"{FAULTS}/test_{name}.py" for name in ("services_away", "clocks_and_disks", "at_once"))
DOCKER, LEASE = f"{PLATFORM}/test_docker_launcher.py", f"{PLATFORM}/test_lease.py"

TABLE = (
    Fault(
        "SIGKILL of a worker at twelve points, runs are processes",
        "one result, no process; the run starts again from its checkpoint",
        (
            f"{WORKER}::test_a_worker_killed_at_any_point_leaves_one_result_and_no_process",
            f"{WORKER}::test_a_worker_killed_on_postgresql_leaves_one_result_and_no_process",
        ),
    ),
    Fault(
        "SIGKILL of a worker at ten points, runs are containers",
        "one result, no container; where a container lived, it is gone on with",
        (
            f"{KILLED}::test_a_worker_killed_at_any_point_of_a_container_leaves_one_result",
            f"{PLATFORM}/test_adoption.py::test_a_killed_workers_container_is_gone_on_with_to_its_end",
        ),
    ),
    Fault(
        "the same while a real training works",
        "the same weights, bit for bit",
        (f"{WHOLE}/test_interruptions.py::test_whatever_happens_every_run_ends_once_with_the_same_weights",),
    ),
    Fault(
        "SIGKILL of the runner, twice in one run",
        "tried again from its checkpoint, not charged",
        (f"{KILLED}::test_a_runner_killed_twice_is_tried_a_third_time_from_its_checkpoint",),
    ),
    Fault(
        "SIGKILL of the container, twice in one run",
        "tried again from its checkpoint, not charged",
        (f"{KILLED}::test_a_container_killed_twice_is_tried_a_third_time_from_its_checkpoint",),
    ),
    Fault(
        "SIGKILL of the launcher service at four points of one run",
        "no attempt is lost, no output missing or doubled",
        (
            f"{KILLED}::test_a_launcher_killed_at_every_point_of_one_run_costs_no_attempt",
            f"{PLATFORM}/test_docker_service.py::test_a_killed_launcher_costs_nothing",
            f"{DOCKER}::test_a_killed_launcher_process_costs_its_runs_nothing",
        ),
    ),
    Fault(
        "SIGKILL of the site while somebody submits",
        "the entry is there once with all its runs, or not at all; the same key leads to it",
        (
            f"{FAULTS}/test_site_killed.py"
            "::test_a_site_killed_inside_its_transaction_leaves_nothing_and_the_next_one_all",
        ),
    ),
    Fault(
        "SIGSTOP of a worker for longer than its lease",
        "another has the run; what the revived one writes is refused",
        (
            f"{WORKER}::test_a_worker_frozen_longer_than_its_lease_writes_nothing_when_it_wakes",
            f"{PLATFORM}/test_adoption.py::test_a_frozen_worker_that_wakes_leaves_the_process_to_its_new_holder",
        ),
    ),
    Fault(
        "a run that three workers died of",
        "fails with its cause, not charged; given to no fourth",
        (f"{PLATFORM}/test_adoption.py::test_a_run_that_three_workers_died_of_is_given_to_no_fourth",),
    ),
    Fault(
        "PostgreSQL restarted, or its connections cut, five times in one job",
        "everybody waits; no attempt is lost",
        (
            f"{AWAY}::test_postgresql_restarted_at_five_moments_of_one_job_costs_no_attempt",
            f"{AWAY}::test_postgresql_restarted_under_a_question_of_the_worker_costs_no_attempt",
        ),
    ),
    Fault(
        "Redis down for a whole job",
        "workers poll; messages are sent when it is back",
        (
            f"{AWAY}::test_redis_that_is_killed_under_a_job_is_missed_by_nobody_and_rings_again",
            f"{PLATFORM}/test_celery.py::test_without_its_broker_a_worker_polls",
        ),
    ),
    Fault(
        "a tenth of the messages lost, a tenth doubled, a tenth late",
        "one attempt and one result for each run",
        (f"{AWAY}::test_a_broker_that_drops_doubles_and_reorders_a_tenth_of_the_messages_changes_no_result",),
    ),
    Fault(
        "two reapers, two relays, two migrators at once",
        "a run is taken back once, no message is lost, the schema is made once",
        (
            f"{LEASE}::test_two_reapers_at_once_take_a_run_back_once",
            f"{PLATFORM}/test_outbox.py::test_two_relays_at_once_lose_nothing",
            f"{PLATFORM}/test_migrations.py::test_two_migrators_at_once_both_succeed",
        ),
    ),
    Fault(
        "the worker's clock an hour ahead, then an hour behind",
        "one attempt; leases know the database's clock only",
        (f"{ODD}::test_a_worker_whose_clock_jumps_an_hour_and_back_does_its_run_once",),
    ),
    Fault(
        "the database's clock an hour ahead, then an hour behind",
        "one result; at most one attempt is lost to an early end of its lease",
        (f"{ODD}::test_a_database_whose_clock_jumps_an_hour_and_back_keeps_one_result",),
    ),
    Fault(
        "a full disk, before a run and under it",
        "cause `disk`, not charged, done when there is room",
        (f"{ODD}::test_a_full_disk_is_nobodys_mistake_and_the_run_is_done_when_there_is_room",),
    ),
    Fault(
        "a container that is silent for 90 s",
        "it is heard again, nothing is missing",
        (f"{DOCKER}::test_a_silent_container_is_heard_again",),
    ),
    Fault(
        "a gigabyte of log without a newline",
        "ended at its limit; neither memory nor disk grows",
        (
            f"{DOCKER}::test_a_gigabyte_without_a_newline_costs_neither_memory_nor_disk",
            f"{PLATFORM}/test_launcher.py::test_a_flood_keeps_its_first_and_last_words",
        ),
    ),
    Fault(
        "invalid UTF-8 in output, events and results",
        "kept as bytes, shown with replacements, refused in a sentence where text is needed",
        (
            f"{PLATFORM}/test_launcher.py::test_output_without_newline_and_without_sense_is_kept",
            f"{PLATFORM}/test_job_directory.py::test_no_bytes_make_the_reader_fail",
        ),
    ),
    Fault(
        "cancel in every state",
        "cancelled in bounded time, nothing alive",
        (
            f"{WORKER}::test_a_run_can_be_cancelled_in_every_state_and_then_ends_as_cancelled",
            f"{WORKER}::test_a_cancelled_run_ends_soon_and_leaves_no_process",
            f"{WORKER}::test_a_wish_to_cancel_is_heard_long_before_the_next_beat",
            f"{PLATFORM}/test_docker_service.py::test_a_cancelled_run_is_gone_in_time",
            f"{KILLED}::test_a_run_whose_worker_is_killed_while_it_is_cancelled_ends_as_cancelled",
        ),
    ),
    Fault(
        "a result that arrives after the wish to cancel",
        "cancelled, and no row of the result is kept",
        (
            f"{ONCE}::test_a_result_that_is_there_when_somebody_cancels_ends_one_way_or_the_other",
            f"{PLATFORM}/test_states.py::test_a_cancellation_that_comes_first_discards_the_result",
        ),
    ),
    Fault(
        "the same submitted by eight at once",
        "one entry, to which all are led",
        (f"{ONCE}::test_the_same_submitted_by_eight_at_once_is_one_entry",),
    ),
    Fault(
        "the first sign-in of one person in eight windows",
        "one account",
        (f"{ONCE}::test_the_first_look_of_one_person_in_eight_windows_makes_one_account",),
    ),
    Fault(
        "many runs over a few workers, random faults",
        "one result each; nothing alive, leased or half-written (the two rounds below are longer)",
        (f"{FAULTS}/test_chaos.py::test_whatever_is_killed_every_run_has_one_result_and_nothing_is_left",),
    ),
)
