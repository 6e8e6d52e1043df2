"""The process of the program that is judged: it runs the program and answers what the tests ask it, value by value.

Nothing here is trusted: the program shares this process and can change all of it. It holds no test and no expected
value, only the arguments of calls already made. It is started bare, without this package, and imports next to nothing.

A frame is four bytes of length and then: from the tests, `marshal` (which only the trusted side writes); to the tests,
JSON, so that reading what a program made up cannot run anything. Where JSON has no form, an object with one key has:
see `encode`. What is no plain value stays here under a number.
"""

import builtins
import marshal
import os
import sys
import types

CHANNEL = 3
MOST = 8 << 20
"""Bytes of one answer."""

kept: list[object] = []
numbers: dict[int, int] = {}
"""Where in `kept` an object is, by its `id`: the same object always has the same number."""


def encode(value: object) -> str:
    """JSON of a value. Sub-classes of plain types are what they are derived from, as `==` has it."""
    if value is None:
        return "null"
    if value is True:
        return "true"
    if value is False:
        return "false"
    if isinstance(value, int):
        number = int.__index__(value)
        return int.__repr__(number) if -(2**63) < number < 2**63 else '{"i":"' + format(number, "x") + '"}'
    if isinstance(value, float):
        return _number(float.__add__(value, 0.0) if value else value)
    if isinstance(value, str):
        return _text(value)
    if isinstance(value, list):
        return "[" + ",".join([encode(each) for each in list.__iter__(value)]) + "]"
    if isinstance(value, tuple):
        return '{"t":[' + ",".join([encode(each) for each in tuple.__iter__(value)]) + "]}"
    if isinstance(value, dict):
        pairs = ["[" + encode(key) + "," + encode(each) + "]" for key, each in dict.items(value)]
        return '{"d":[' + ",".join(pairs) + "]}"
    if isinstance(value, (set, frozenset)):
        kind = "s" if isinstance(value, set) else "f"
        return '{"' + kind + '":[' + ",".join([encode(each) for each in value]) + "]}"
    if isinstance(value, complex):
        return '{"c":[' + _number(value.real) + "," + _number(value.imag) + "]}"
    if isinstance(value, (bytes, bytearray)):
        return '{"b":"' + value.hex() + '"}'
    if isinstance(value, range):
        return '{"r":[' + ",".join([encode(each) for each in (value.start, value.stop, value.step)]) + "]}"
    number = numbers.setdefault(id(value), len(kept))
    if number == len(kept):
        kept.append(value)
    return '{"o":' + int.__repr__(number) + "}"


def _number(value: float) -> str:
    if value != value:
        return "NaN"
    if value in (float("inf"), float("-inf")):
        return "Infinity" if value > 0 else "-Infinity"
    return float.__repr__(value)


def _text(value: str) -> str:
    from _json import encode_basestring_ascii

    return encode_basestring_ascii(str.__str__(value))


def decode(value: object) -> object:
    """What the tests sent: marshalled values, with `(..., number)` for what is kept here."""
    if type(value) is tuple and len(value) == 2 and value[0] is ...:
        return kept[value[1]]
    if type(value) in (list, tuple, set, frozenset):
        return type(value)([decode(each) for each in value])  # type: ignore[attr-defined,call-arg]
    if type(value) is dict:
        return {decode(key): decode(each) for key, each in value.items()}
    return value


def read(size: int) -> bytes:
    parts = []
    while size:
        part = os.read(CHANNEL, min(size, 1 << 16))
        if not part:
            os._exit(0)  # the tests are over
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def say(answer: str) -> None:
    data = answer.encode("ascii")
    if len(data) > MOST:
        data = b'{"x":["ValueError","a value too large to be compared"]}'
    data = len(data).to_bytes(4, "big") + data
    while data:
        data = data[os.write(CHANNEL, data) :]


def refusal(error: BaseException) -> str:
    """An exception: the first of its classes that Python itself has, and what it says."""
    names = [kind.__name__ for kind in type(error).__mro__ if getattr(builtins, kind.__name__, None) is kind]
    try:
        message = f"{type(error).__name__}: {error}"[:300]
    except BaseException:
        message = "an exception that cannot be shown"
    return '{"x":[' + _text(names[0]) + "," + _text(message) + "]}"


def answer(module: types.ModuleType, operation: str, arguments: tuple[object, ...], refers: bool) -> str:
    if operation == "load":
        exec(compile(str(arguments[0]), "<program>", "exec", dont_inherit=True), module.__dict__)
        return "null"
    if operation == "names":
        return encode([name for name in list(module.__dict__) if type(name) is str])
    if operation == "global":
        return encode(module.__dict__[str(arguments[0])])
    target, rest = kept[int(arguments[0])], arguments[1:]  # type: ignore[call-overload]
    if refers:
        rest = tuple(decode(each) for each in rest)
    if operation == "call":
        positional, named = rest
        return encode(target(*positional, **named))  # type: ignore[operator,arg-type,misc]
    if operation == "get":
        return encode(getattr(target, str(rest[0])))
    if operation == "set":
        setattr(target, str(rest[0]), rest[1])
        return "null"
    if operation == "item":
        return encode(target[rest[0]])  # type: ignore[index]
    if operation == "list":
        return encode(list(target))  # type: ignore[call-overload]
    if operation == "length":
        return encode(len(target))  # type: ignore[arg-type]
    return encode(str(target) if operation == "text" else repr(target))


def main() -> None:
    sys.set_int_max_str_digits(0)
    module = types.ModuleType("candidate")  # not `__main__`: a program's own main part is not what is tested
    sys.modules["candidate"] = module
    while True:
        operation, arguments, refers = marshal.loads(read(int.from_bytes(read(4), "big")))
        try:
            said = answer(module, operation, arguments, refers)
        except BaseException as error:
            said = refusal(error)
        say(said)


if __name__ == "__main__":
    main()
