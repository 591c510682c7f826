"""The wire: the same list in C++ and Python, and a decoder that nothing can confuse."""

from __future__ import annotations

import re
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from soak import rounds

from vramkit.share import protocol
from vramkit.share.protocol import MESSAGES, Bytes, Decoder, Integer, Message, ProtocolError, encode

LIST = Path(__file__).parents[2] / "native" / "share" / "protocol.def"


def rows() -> list[tuple[str, list[str]]]:
    text = re.sub(r"//[^\n]*", "", LIST.read_text(encoding="utf-8"))
    text = re.sub(r"^#[^\n]*", "", text, flags=re.MULTILINE)
    found = re.findall(r"VRAMKIT_(\w+)\(([^)]*)\)", text)
    assert len(found) == text.count("VRAMKIT_"), "a row of protocol.def cannot be read"
    return [(kind, [word.strip() for word in words.split(",")]) for kind, words in found]


def constants() -> dict[str, int]:
    return {words[0]: int(words[1]) for kind, words in rows() if kind == "CONSTANT"}


def listed() -> dict[str, tuple[int, str, list[tuple[str, object]]]]:
    """name -> number, sender, fields: what protocol.def says."""
    known = constants()
    messages: dict[str, tuple[int, str, list[tuple[str, object]]]] = {}
    for kind, words in rows():
        if kind == "MESSAGE":
            assert words[0] not in messages
            messages[words[0]] = (int(words[1]), words[2], [])
        elif kind == "FIELD":
            least, most = (known[word] if word in known else int(word) for word in words[3:])
            messages[words[0]][2].append((words[2], Integer(words[1], least, most)))
        elif kind in ("BYTES", "TEXT"):
            messages[words[0]][2].append((words[1], Bytes(int(words[2]), kind == "TEXT")))
    return messages


def words_of(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_both_lists_are_the_same() -> None:
    ours = {
        words_of(cls.__name__): (
            number,
            cls.sender,
            [(name.rstrip("_"), kind) for name, kind in cls.kinds],
        )
        for number, cls in MESSAGES.items()
    }
    assert ours == listed()
    assert len({number for number, _, _ in ours.values()}) == len(ours)


def test_both_have_the_same_constants() -> None:
    assert constants() == {
        "Version": protocol.VERSION,
        "HeaderBytes": protocol.HEADER.size,
        "LargestFrame": protocol.LARGEST_FRAME,
        "Cards": protocol.CARDS,
        "CreditPageBytes": protocol.CREDIT_PAGE_BYTES,
        "MostBytes": protocol.MOST_BYTES,
        "MostCount": protocol.MOST_COUNT,
    }


def test_a_frame_is_packed_as_the_list_says() -> None:
    frame = encode(protocol.Need(3, 0x1122334455))
    assert frame == bytes(
        [20, 0, 0, 0, 6, 0, 0, 0, 3, 0, 0, 0, 0x55, 0x44, 0x33, 0x22, 0x11, 0, 0, 0]
    )


def test_every_frame_is_small_enough() -> None:
    assert all(
        protocol.HEADER.size + cls.layout.size <= protocol.LARGEST_FRAME
        for cls in MESSAGES.values()
    )


def value_of(kind: object) -> st.SearchStrategy[Any]:
    if isinstance(kind, Integer):
        return st.integers(kind.least, kind.most)
    assert isinstance(kind, Bytes)
    if not kind.text:
        return st.binary(min_size=kind.count, max_size=kind.count)
    letters = st.characters(codec="utf-8", exclude_characters="\0")
    return st.text(letters, max_size=kind.count).map(lambda text: protocol.cut(text, kind.count))


def messages(sender: str) -> st.SearchStrategy[Message]:
    return st.one_of(
        [
            st.tuples(*(value_of(kind) for _, kind in cls.kinds)).map(
                lambda values, cls=cls: cls(*values)  # type: ignore[misc]
            )
            for cls in MESSAGES.values()
            if cls.sender == sender
        ]
    )


@given(st.sampled_from(["client", "daemon"]), st.data())
@settings(max_examples=rounds(60, 5000))
def test_messages_come_out_as_they_went_in_however_cut(sender: Any, data: st.DataObject) -> None:
    sent = data.draw(st.lists(messages(sender), max_size=6))
    stream = b"".join(map(encode, sent))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=8)))
    decoder = Decoder(sender)
    received: list[Message] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        decoder.feed(stream[start:end])
        received += decoder.messages()
    assert received == sent
    assert decoder.rest() == b""


@given(st.binary(max_size=300))
@settings(max_examples=rounds(200, 100_000))
def test_garbage_is_an_error_or_nothing(data: bytes) -> None:
    decoder = Decoder("client")
    decoder.feed(data)
    try:
        for message in decoder.messages():
            assert encode(message)
    except ProtocolError as error:
        assert str(error)


@given(messages("client"), st.data())
@settings(max_examples=rounds(200, 100_000))
def test_a_damaged_frame_is_an_error_or_another_message(
    message: Message, data: st.DataObject
) -> None:
    frame = bytearray(encode(message))
    for _ in range(data.draw(st.integers(1, 4))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    decoder = Decoder("client")
    decoder.feed(bytes(frame))
    try:
        received = list(decoder.messages())
    except ProtocolError:
        return
    for each in received:
        assert encode(each)


def header(length: int, number: int, flags: int = 0) -> bytes:
    return struct.pack("<IHH", length, number, flags)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (header(16, 999), "no message 999"),
        (header(16, 72), "no message 72 of a client"),
        (header(17, 4), "length of 17 bytes; it must be 16"),
        (header(0, 4), "length of 0"),
        (header(1 << 31, 4), "length of 2147483648"),
        (header(16, 4, 1), "flags 1"),
        (header(20, 6) + struct.pack("<IQ", 16, 0), "card is 16; it may be 0 to 15"),
        (header(20, 6) + struct.pack("<IQ", 0, 1 << 63), "bytes is 9223372036854775808"),
        (header(264, 10) + struct.pack("<II248s", 0, 0, b"\xff"), "text is no UTF-8"),
        (header(264, 10) + struct.pack("<II248s", 0, 0, b"a\0b"), "text goes on after its end"),
    ],
)
def test_what_is_no_message_is_refused_as_soon_as_it_is_known(data: bytes, said: str) -> None:
    decoder = Decoder("client")
    decoder.feed(data)
    with pytest.raises(ProtocolError, match=re.escape(said)):
        list(decoder.messages())


@pytest.mark.parametrize(
    "message",
    [
        protocol.Need(16, 0),
        protocol.Need(0, -1),
        protocol.Grant(0, 0),
        protocol.Refuse("x" * 249),
        protocol.Refuse("a\0b"),
        protocol.Device(b"short", 1, 0),
    ],
)
def test_what_is_no_message_is_not_sent(message: Message) -> None:
    with pytest.raises(ProtocolError):
        encode(message)


def test_a_text_is_cut_between_characters() -> None:
    assert protocol.cut("é" * 40, 63) == "é" * 31
    assert protocol.cut("a\0b", 63) == "a b"
