"""Questions to the policy's server, several in flight so that it can batch them; answers as they come.

Only a full queue and a server that does not listen yet are tried again, for `PATIENCE_SECONDS`. Whatever else goes
wrong ends the asking: an evaluation with holes has no number.
"""

from __future__ import annotations

import http.client
import json
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

PATIENCE_SECONDS = 60.0
FIRST_WAIT, LONGEST_WAIT = 0.05, 2.0
FULL = 429
MESSAGE_LENGTH = 500


class EndpointError(RuntimeError):
    """The server refused, failed or is gone. The message names the item that was asked for."""


class _NotYetError(Exception):
    """To be tried again."""


@dataclass(frozen=True)
class Question:
    """One request; `about` says for whom, in messages."""

    about: str
    path: str
    body: Mapping[str, Any]


@dataclass(frozen=True)
class Reply:
    """What the server said, and what it took."""

    question: Question
    payload: Mapping[str, Any]
    seconds: float
    attempts: int


@dataclass(frozen=True)
class Endpoint:
    """Where and as whom to ask."""

    url: str
    api_key: str | None = field(default=None, repr=False)
    request_seconds: float = 3600.0
    patience_seconds: float = PATIENCE_SECONDS

    def ask(self, question: Question) -> Reply:
        """One answer; EndpointError where there will be none."""
        began, wait, attempts = time.monotonic(), FIRST_WAIT, 0
        while True:
            attempts += 1
            asked = time.monotonic()
            try:
                payload = self._once(question)
                return Reply(question, payload, time.monotonic() - asked, attempts)
            except _NotYetError as error:
                if time.monotonic() - began > self.patience_seconds:
                    raise EndpointError(
                        f"{question.about} could not be asked for in {self.patience_seconds:.0f} s: {error}"
                    ) from None
            time.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    def _once(self, question: Question) -> Mapping[str, Any]:
        parts = urlsplit(self.url)
        connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=self.request_seconds)
        headers = {"Content-Type": "application/json"}
        if self.api_key:
            headers["Authorization"] = f"Bearer {self.api_key}"
        try:
            connection.request("POST", question.path, json.dumps(question.body).encode(), headers)
            response = connection.getresponse()
            content = response.read()
        except ConnectionRefusedError:
            raise _NotYetError(f"nothing listens at {self.url}") from None
        except TimeoutError:
            raise EndpointError(
                f"the server at {self.url} had no answer for {question.about} after {self.request_seconds:.0f} s"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise EndpointError(
                f"the server at {self.url} was lost while it answered {question.about}: {type(error).__name__}"
            ) from None
        finally:
            connection.close()
        if response.status == FULL:
            raise _NotYetError("its queue is full")
        if response.status != http.client.OK:
            raise EndpointError(
                f"the server refused {question.about} with status {response.status}: {_message(content)}"
            )
        try:
            payload = json.loads(content)
        except ValueError:
            payload = None
        if not isinstance(payload, dict):
            raise EndpointError(f"the server's answer to {question.about} is no JSON object: {_message(content)}")
        return payload


def _message(content: bytes) -> str:
    """What an error says, in the shape of OpenAI's API or as it is."""
    try:
        text = str(json.loads(content)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        text = content.decode(errors="replace")
    return " ".join(text.split())[:MESSAGE_LENGTH]


def ask_all(endpoint: Endpoint, questions: Sequence[Question], in_flight: int) -> Iterator[Reply]:
    """Replies in the order in which they come; the first failure is raised, and nothing more is asked."""
    waiting: queue.SimpleQueue[Question] = queue.SimpleQueue()
    answered: queue.SimpleQueue[Reply | BaseException] = queue.SimpleQueue()
    over = threading.Event()
    for question in questions:
        waiting.put(question)

    def work() -> None:
        while not over.is_set():
            try:
                question = waiting.get_nowait()
            except queue.Empty:
                return
            try:
                answered.put(endpoint.ask(question))
            except BaseException as error:  # for the caller, whatever it is: a thread has nobody to tell
                answered.put(error)
                return

    for _ in range(min(in_flight, len(questions))):
        threading.Thread(target=work, daemon=True).start()  # a daemon: nobody waits an hour for a lost answer
    try:
        for _ in questions:
            reply = answered.get()
            if isinstance(reply, BaseException):
                raise reply
            yield reply
    finally:
        over.set()
