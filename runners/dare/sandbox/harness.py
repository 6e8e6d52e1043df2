"""The tests of one program, in a process that the program cannot reach: it answers them through a channel.

Tests are published code and trusted. What the program answers is data: plain values are rebuilt here and compared here,
everything else is a `Remote`, which equals nothing but itself, whatever its own `__eq__` says over there.
"""

from __future__ import annotations

import builtins
import json
import marshal
import random
import socket
import sys
from collections.abc import Iterator, Mapping
from types import CodeType
from typing import Any, NamedTuple

MOST = 8 << 20
"""Bytes of one answer. `candidate` keeps to it; a program that writes by itself may not."""


class GoneError(BaseException):
    """The process of the program ended. No test can take this for an exception of the program."""


class ForgedError(BaseException):
    """What came back is nothing that the process answers when it is left alone."""


class EndedError(BaseException):
    """The program raised what ends a program: SystemExit, KeyboardInterrupt."""


class UnsupportedError(BaseException):
    """The tests pass a value that cannot be sent. The item cannot be judged; nothing is said of the program."""


class Remote:
    """Something of the program that is no plain value: a function, an object, an iterator.

    Not asked over there: `==`, `!=`, order, truth and hash.
    """

    __slots__ = ("_channel", "_number")

    def __init__(self, channel: Channel, number: int) -> None:
        object.__setattr__(self, "_channel", channel)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._channel.ask("call", self._number, arguments, named)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._channel.ask("get", self._number, name)

    def __setattr__(self, name: str, value: Any) -> None:
        self._channel.ask("set", self._number, name, value)

    def __getitem__(self, key: Any) -> Any:
        return self._channel.ask("item", self._number, key)

    def __iter__(self) -> Iterator[Any]:
        values = self._channel.ask("list", self._number)
        if type(values) is not list:
            raise ForgedError
        return iter(values)

    def __len__(self) -> int:
        length = self._channel.ask("length", self._number)
        if type(length) is not int or length < 0:
            raise ForgedError
        return length

    def __bool__(self) -> bool:
        return True

    def __str__(self) -> str:
        return str(self._channel.ask("text", self._number))

    def __repr__(self) -> str:
        return str(self._channel.ask("show", self._number))


class Channel:
    """Asks the process of the program."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._remotes: dict[int, Remote] = {}
        self.raised: BaseException | None = None
        """The last exception that was the program's."""

    def ask(self, operation: str, *arguments: Any) -> Any:
        """The answer, or the exception that the program raised, as the nearest class that Python has."""
        self._send(operation, arguments)
        size = int.from_bytes(self._read(4), "big")
        if size > MOST:
            raise ForgedError
        data = self._read(size)
        try:
            said = json.loads(data)
            raised = _exception(*said["x"]) if type(said) is dict and "x" in said else None
            value = None if raised else self._rebuilt(said)
        except (ValueError, ArithmeticError, LookupError, TypeError, AttributeError, RecursionError, MemoryError):
            raise ForgedError from None
        if raised:
            self.raised = raised
            raise raised
        return value

    def _send(self, operation: str, arguments: tuple[Any, ...]) -> None:
        try:
            data = marshal.dumps((operation, arguments, False))
        except ValueError:
            try:
                data = marshal.dumps((operation, tuple(map(_with_references, arguments)), True))
            except ValueError as error:
                raise UnsupportedError("a test passes a value that cannot be sent to the program") from error
        try:
            self._connection.sendall(len(data).to_bytes(4, "big") + data)
        except OSError as error:
            raise GoneError from error

    def _read(self, size: int) -> bytes:
        parts = []
        while size:
            try:
                part = self._connection.recv(min(size, 1 << 16))
            except OSError as error:
                raise GoneError from error
            if not part:
                raise GoneError
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _rebuilt(self, said: Any) -> Any:
        """The value behind its JSON; any error when there is none."""
        if type(said) is list:
            return [self._rebuilt(each) for each in said]
        if type(said) is not dict:
            return said
        ((kind, inside),) = said.items()
        if kind == "t":
            return tuple([self._rebuilt(each) for each in inside])
        if kind == "d":
            return {self._rebuilt(key): self._rebuilt(each) for key, each in inside}
        if kind == "s":
            return {self._rebuilt(each) for each in inside}
        if kind == "f":
            return frozenset([self._rebuilt(each) for each in inside])
        if kind == "i":
            return int(inside, 16)
        if kind == "c":
            return complex(*inside)
        if kind == "b":
            return bytes.fromhex(inside)
        if kind == "r":
            return range(*inside)
        if kind == "o":
            number = int(inside)
            return self._remotes.setdefault(number, Remote(self, number))
        raise ValueError(kind)


def _with_references(value: Any) -> Any:
    """The value with `(..., number)` for what lives in the process of the program."""
    if type(value) is Remote:
        return (..., value._number)
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([_with_references(each) for each in value])
    if type(value) is dict:
        return {_with_references(key): _with_references(each) for key, each in value.items()}
    return value


def _exception(name: str, message: str) -> BaseException:
    kind = getattr(builtins, name)
    if not issubclass(kind, Exception):
        return EndedError(str(message))
    if issubclass(kind, (StopIteration, StopAsyncIteration)):  # it would end a loop of the tests early, and quietly
        return RuntimeError(str(message))
    try:
        raised: BaseException = kind(str(message))
    except TypeError:
        raised = RuntimeError(str(message))
    return raised


class Finding(NamedTuple):
    """How the tests ended, and why in one line."""

    status: str
    why: str


def examine(connection: socket.socket, program: Mapping[str, Any]) -> Finding:
    """Loads a program and runs its tests to the end. `passed` only after the last of them."""
    sys.set_int_max_str_digits(0)
    random.seed(0)  # tests that draw their questions draw the same for everybody
    channel = Channel(connection)
    scope: dict[str, Any] = {"__name__": "tests"}
    try:
        tests = compile(program["tests"], "<tests>", "exec")
        exec(compile(program["prefix"], "<prefix>", "exec"), scope)
    except Exception as error:
        return Finding("error", f"the tests are at fault: {_shown(error)}")
    try:
        for source in (*program["preamble"], program["prefix"], program["source"]):
            channel.ask("load", source)
        names = channel.ask("names")
        asked = (_names(tests) - scope.keys() - vars(builtins).keys()) | {program["entry_point"]}
        for name in asked.intersection(names) if type(names) is list else ():
            scope[name] = channel.ask("global", name)
        exec(tests, scope)
    except GoneError:
        return Finding("died", "the program ended before its tests did")
    except ForgedError:
        return Finding("failed", "the program gave an answer that cannot be read")
    except UnsupportedError as error:
        return Finding("error", str(error))
    except EndedError as error:
        return Finding("failed", str(error))
    except Exception as error:
        if isinstance(error, ImportError) and error is not channel.raised:
            return Finding("error", f"the tests are at fault: {_shown(error)}")
        return Finding("failed", _shown(error))
    return Finding("passed", "")


def _names(code: CodeType) -> set[str]:
    """Every name that the code or a function in it may look up."""
    inner = [_names(constant) for constant in code.co_consts if isinstance(constant, CodeType)]
    return set(code.co_names).union(*inner)


def _shown(error: BaseException) -> str:
    said = str(error)
    kind = type(error).__name__
    return (said if said.startswith(kind) else f"{kind}: {said}" if said else kind)[:300]
