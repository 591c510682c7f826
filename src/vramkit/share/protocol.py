"""The messages between clients and the daemon, as native/share/protocol.def lists them.

`encode` makes frames; a `Decoder` takes bytes in any pieces and gives messages back, or raises
ProtocolError. Nothing here reads or writes a socket.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

VERSION = 3
LARGEST_FRAME = 4096
CARDS = 16
CREDIT_PAGE_BYTES = 4096
MOST_BYTES = 1 << 60
MOST_COUNT = (1 << 63) - 1
LARGEST_LINE = 64 << 10
"""Of the JSON that follows `Control`."""

HEADER = struct.Struct("<IHH")
MODES = ("swap", "prefetch", "paged")

CODES = {"u8": "B", "u32": "I", "i32": "i", "u64": "Q"}


class ProtocolError(ValueError):
    """What was received, or is to be sent, is no message; the text says why."""


@dataclass(frozen=True)
class Integer:
    """Type and bounds of a field."""

    type: str
    least: int
    most: int


@dataclass(frozen=True)
class Bytes:
    """A field of so many bytes; `text`: UTF-8, padded with zeros."""

    count: int
    text: bool


Kind = Integer | Bytes


def _integer(type: str, least: int, most: int) -> Any:
    return field(metadata={"kind": Integer(type, least, most)})


def _u8(most: int) -> Any:
    return _integer("u8", 0, most)


def _u32(least: int = 0, most: int = (1 << 32) - 1) -> Any:
    return _integer("u32", least, most)


def _count(least: int = 0) -> Any:
    return _integer("u64", least, MOST_COUNT)


def _amount(least: int = 0) -> Any:
    return _integer("u64", least, MOST_BYTES)


def _card() -> Any:
    return _u32(0, CARDS - 1)


def _text(count: int) -> Any:
    return field(metadata={"kind": Bytes(count, True)})


def _uuid() -> Any:
    return field(metadata={"kind": Bytes(16, False)})


class Message:
    """A row of the list; the fields are those of the subclass, in the order of the frame."""

    number: ClassVar[int]
    sender: ClassVar[Literal["client", "daemon"]]
    layout: ClassVar[struct.Struct]
    kinds: ClassVar[tuple[tuple[str, Kind], ...]]


_Made = TypeVar("_Made", bound=type[Message])
MESSAGES: dict[int, type[Message]] = {}


def _message(number: int, sender: Literal["client", "daemon"]) -> Callable[[_Made], _Made]:
    def register(cls: _Made) -> _Made:
        # `dataclass` was applied before: its fields are known here.
        cls.number, cls.sender = number, sender
        cls.kinds = tuple((each.name, each.metadata["kind"]) for each in fields(cls))  # type: ignore[arg-type]
        codes = "".join(
            CODES[kind.type] if isinstance(kind, Integer) else f"{kind.count}s"
            for _, kind in cls.kinds
        )
        cls.layout = struct.Struct("<" + codes)
        MESSAGES[number] = cls
        return cls

    return register


# From the client


@_message(1, "client")
@dataclass(frozen=True)
class Hello(Message):
    protocol: int = _u32(1, 1000)
    pid: int = _u32(1, 1 << 22)
    start_ticks: int = _count()
    weight_milli: int = _u32(1, 1_000_000)
    priority: int = _integer("i32", -1000, 1000)
    memory_limit: int = _amount()
    mode: int = _u8(2)
    name: str = _text(63)


@_message(2, "client")
@dataclass(frozen=True)
class Device(Message):
    uuid: bytes = _uuid()
    total_bytes: int = _amount(1)
    held: int = _amount()


@_message(3, "client")
@dataclass(frozen=True)
class Usage(Message):
    card: int = _card()
    resident: int = _amount()
    swapped: int = _amount()
    unbacked: int = _amount()
    unswappable: int = _amount()
    out_bytes: int = _count()
    in_bytes: int = _count()
    waited_ns: int = _count()
    launches: int = _count()


@_message(4, "client")
@dataclass(frozen=True)
class Want(Message):
    turn: int = _count()


@_message(5, "client")
@dataclass(frozen=True)
class Idle(Message):
    turn: int = _count()


@_message(6, "client")
@dataclass(frozen=True)
class Need(Message):
    card: int = _card()
    bytes: int = _amount()


@_message(7, "client")
@dataclass(frozen=True)
class Stopped(Message):
    turn: int = _count()


@_message(8, "client")
@dataclass(frozen=True)
class Moved(Message):
    card: int = _card()
    turn: int = _count()
    bytes: int = _amount()


@_message(9, "client")
@dataclass(frozen=True)
class Running(Message):
    turn: int = _count()


@_message(10, "client")
@dataclass(frozen=True)
class Failed(Message):
    code: int = _u32()
    card: int = _card()
    text: str = _text(248)


@_message(11, "client")
@dataclass(frozen=True)
class Bye(Message):
    pass


@_message(13, "client")
@dataclass(frozen=True)
class Leaving(Message):
    pass


@_message(12, "client")
@dataclass(frozen=True)
class Control(Message):
    pass


# From the daemon


@_message(64, "daemon")
@dataclass(frozen=True)
class Welcome(Message):
    protocol: int = _u32(1, 1000)
    client: int = _count(1)


@_message(65, "daemon")
@dataclass(frozen=True)
class Card(Message):
    card: int = _card()
    uuid: bytes = _uuid()
    budget: int = _amount()
    limit: int = _amount()


@_message(66, "daemon")
@dataclass(frozen=True)
class Grant(Message):
    card: int = _card()
    bytes: int = _amount(1)


@_message(67, "daemon")
@dataclass(frozen=True)
class Source(Message):
    card: int = _card()
    source: int = _u32(1)
    giver: int = _count(1)
    # `from` is a word of Python's own.
    from_: int = _count()
    until: int = _count(1)


@_message(68, "daemon")
@dataclass(frozen=True)
class SourceEnded(Message):
    card: int = _card()
    source: int = _u32(1)
    upto: int = _count()


@_message(69, "daemon")
@dataclass(frozen=True)
class Stop(Message):
    turn: int = _count()


@_message(70, "daemon")
@dataclass(frozen=True)
class Evict(Message):
    card: int = _card()
    turn: int = _count()
    bytes: int = _amount(1)


@_message(71, "daemon")
@dataclass(frozen=True)
class Fill(Message):
    turn: int = _count()


@_message(72, "daemon")
@dataclass(frozen=True)
class Start(Message):
    turn: int = _count()


@_message(73, "daemon")
@dataclass(frozen=True)
class Prepare(Message):
    bytes: int = _amount(1)


@_message(74, "daemon")
@dataclass(frozen=True)
class Refuse(Message):
    text: str = _text(248)


# Frames


def encode(message: Message) -> bytes:
    """The frame of a message. Raises ProtocolError for a value out of range."""
    packed = [_checked(message, name, kind, getattr(message, name)) for name, kind in message.kinds]
    length = HEADER.size + message.layout.size
    return HEADER.pack(length, message.number, 0) + message.layout.pack(*packed)


def cut(text: str, count: int) -> str:
    """So much of a text as fits `count` bytes, without half a character."""
    return text.encode("utf-8", "replace")[:count].decode("utf-8", "ignore").replace("\0", " ")


class Decoder:
    """Bytes in, messages out. `sender`: who may have sent them."""

    def __init__(self, sender: Literal["client", "daemon"]) -> None:
        self._sender = sender
        self._buffer = bytearray()

    def feed(self, data: bytes) -> None:
        self._buffer += data

    def messages(self) -> Iterator[Message]:
        """What is complete. After a Control, the rest is no frame: see `rest`."""
        while (message := self._next()) is not None:
            yield message

    def rest(self) -> bytes:
        """Takes what was received and not decoded."""
        data, self._buffer = bytes(self._buffer), bytearray()
        return data

    def _next(self) -> Message | None:
        if len(self._buffer) < HEADER.size:
            return None
        length, number, flags = HEADER.unpack_from(self._buffer)
        # The header is judged at once: nobody waits for the bytes of a frame that cannot be.
        cls = MESSAGES.get(number)
        if cls is None or cls.sender != self._sender:
            raise ProtocolError(f"there is no message {number} of a {self._sender}")
        wanted = HEADER.size + cls.layout.size
        if length != wanted or length > LARGEST_FRAME:
            raise ProtocolError(
                f"{cls.__name__.lower()} has a length of {length} bytes; it must be {wanted}"
            )
        if flags != 0:
            raise ProtocolError(f"{cls.__name__.lower()} has the flags {flags}; they must be 0")
        if len(self._buffer) < length:
            return None
        values = cls.layout.unpack_from(self._buffer, HEADER.size)
        del self._buffer[:length]
        return _message_of(cls, values)


def _message_of(cls: type[Message], values: tuple[Any, ...]) -> Message:
    decoded: list[Any] = []
    for (name, kind), value in zip(cls.kinds, values, strict=True):
        if isinstance(kind, Integer):
            _must_be_within(cls, name, kind, value)
            decoded.append(value)
        elif kind.text:
            decoded.append(_text_of(cls, name, value))
        else:
            decoded.append(value)
    return cls(*decoded)


def _text_of(cls: type[Message], name: str, value: bytes) -> str:
    text, _, padding = value.partition(b"\0")
    if padding.strip(b"\0"):
        raise ProtocolError(f"{cls.__name__.lower()}: {name} goes on after its end")
    try:
        return text.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{cls.__name__.lower()}: {name} is no UTF-8") from error


def _checked(message: Message, name: str, kind: Kind, value: Any) -> Any:
    if isinstance(kind, Integer):
        _must_be_within(type(message), name, kind, value)
        return value
    data = value.encode("utf-8") if kind.text else value
    if len(data) > kind.count or (not kind.text and len(data) != kind.count):
        raise ProtocolError(
            f"{type(message).__name__.lower()}: {name} has {len(data)} bytes of {kind.count}"
        )
    if kind.text and b"\0" in data:
        raise ProtocolError(f"{type(message).__name__.lower()}: {name} has a zero in it")
    return data


def _must_be_within(cls: type[Message], name: str, kind: Integer, value: int) -> None:
    if not kind.least <= value <= kind.most:
        raise ProtocolError(
            f"{cls.__name__.lower()}: {name} is {value}; it may be {kind.least} to {kind.most}"
        )
