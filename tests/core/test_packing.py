"""Commands are packed as the reference packs them, and a RESP parser reads back what was said."""

from typing import Any

import hiredis
import pytest
from hypothesis import given
from hypothesis import strategies as st

import reference
from fastq._core import Keep, XaddTemplate, pack

pytestmark = pytest.mark.core

texts = st.text(st.characters(exclude_categories=["Cs"]))
blobs = st.binary() | st.binary().map(bytearray) | st.binary().map(lambda data: memoryview(data))
parts = blobs | texts | st.integers()
# Where the length of a length changes.
SIZES = [0, 1, 9, 10, 11, 99, 100, 999, 1_000, 9_999, 10_000, 99_999, 100_000]


def read_back(packed: bytes) -> Any:
    reader = hiredis.Reader()
    reader.feed(packed)
    command = reader.gets()
    assert reader.gets() is False, "more than one command was packed"
    return command


@given(st.lists(parts, min_size=1, max_size=20))
def test_a_command_is_packed_as_the_reference_does_and_is_read_back(command: list[Any]) -> None:
    packed = pack(*command)
    assert packed == reference.command(*command)
    assert read_back(packed) == [reference.to_bytes(part) for part in command]


@pytest.mark.parametrize("size", SIZES)
def test_sizes_are_exact_where_their_own_length_changes(size: int) -> None:
    assert pack(b"x" * size) == reference.command(b"x" * size)
    if size:
        assert pack(*[b"x"] * size) == reference.command(*[b"x"] * size)


@given(st.binary(), st.binary(), st.lists(parts, max_size=6), st.binary())
def test_a_template_packs_as_the_reference_does(
    key: bytes, name: bytes, more: list[Any], payload: bytes
) -> None:
    template = XaddTemplate(key, name, tuple(more))
    assert template.pack(payload) == reference.xadd(key, name, more, payload)
    assert template.pack(b"") == reference.xadd(key, name, more, b"")
    assert template.pack(payload) == reference.xadd(key, name, more, payload)


@pytest.mark.parametrize("size", SIZES)
def test_a_template_takes_payloads_of_any_size(size: int) -> None:
    template = XaddTemplate(b"key", b"name")
    assert template.pack(b"x" * size) == reference.xadd(b"key", b"name", (), b"x" * size)


@pytest.mark.parametrize("part", [None, 1.5, True, [], object()])
def test_other_parts_are_refused(part: Any) -> None:
    with pytest.raises(TypeError, match=f"not {type(part).__name__}"):
        pack(b"SET", part)
    with pytest.raises(TypeError, match=f"not {type(part).__name__}"):
        XaddTemplate(b"key", b"name", (part,))


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(UnicodeEncodeError):
        pack(b"SET", "\ud800")


def test_a_command_without_a_name_is_refused() -> None:
    with pytest.raises(ValueError, match="at least its name"):
        pack()


def test_bytes_of_a_subclass_are_sent_as_what_they_hold() -> None:
    class Odd(bytes):
        pass

    assert pack(Odd(b"PING")) == pack("PING")


@pytest.mark.parametrize("ms", [0, -1])
def test_a_result_that_is_not_kept_has_no_keep(ms: int) -> None:
    with pytest.raises(ValueError, match="not kept"):
        Keep(ms)
    assert Keep(1).ms == 1
    assert Keep().ms is None
