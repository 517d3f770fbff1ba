"""The codecs behind `serializer`: wire format, errors, pickle and own serializers."""

import pickle
import subprocess
import sys
from typing import Any

import orjson
import pytest

from fastq.errors import ConfigError, SerializationError
from fastq.serializers import Codec, resolve

JSON = resolve("json")
PICKLE = resolve("pickle")


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels):
        value = [value]
    return value


def test_the_wire_format_is_an_array_or_an_object() -> None:
    assert JSON.dump_call((1, "a"), {}) == b'[1,"a"]'
    assert JSON.dump_call((), {}) == b"[]"
    assert orjson.loads(JSON.dump_call((1,), {"b": 2})) == {"a": [1], "k": {"b": 2}}
    assert pickle.loads(PICKLE.dump_call((1,), {"b": 2})) == ([1], {"b": 2})


@pytest.mark.parametrize("codec", [JSON, PICKLE], ids=["json", "pickle"])
def test_an_error_names_the_argument(codec: Codec) -> None:
    bad = (x for x in "")
    with pytest.raises(SerializationError, match=r"argument 'second' of type generator"):
        codec.dump_call((1, bad), {}, ["first", "second"])
    with pytest.raises(SerializationError, match=r"argument 2 of type generator"):
        codec.dump_call((1, bad), {}, ["first"])
    with pytest.raises(SerializationError, match=r"argument 'key' of type generator"):
        codec.dump_call((1,), {"key": bad})
    with pytest.raises(SerializationError, match=r"the result of type generator"):
        codec.dump_value(bad)


def test_a_deep_call_is_refused_as_a_whole() -> None:
    with pytest.raises(SerializationError, match="the arguments of type tuple"):
        JSON.dump_call((nested(253),), {"a": b""})


@pytest.mark.parametrize("data", [b"", b"[1", b"[NaN]", b"[" * 5000, b'["\xff"]', b"[1]x"])
def test_a_broken_result_is_a_serialization_error(data: bytes) -> None:
    with pytest.raises(SerializationError, match="not JSON"):
        JSON.load_value(data)


@pytest.mark.parametrize("call", [5, {}, {"a": []}, {"a": 1, "k": {}}, {"a": [], "k": []}])
def test_a_payload_that_is_no_call_is_a_serialization_error(call: Any) -> None:
    with pytest.raises(SerializationError, match="not the arguments of a call"):
        JSON.load_call(orjson.dumps(call))
    with pytest.raises(SerializationError):
        PICKLE.load_call(pickle.dumps(call))


class Own:
    def dumps(self, value: Any, /) -> bytes:
        return repr(value).encode()

    def loads(self, data: bytes, /) -> object:
        return eval(data)


class Wrong(Own):
    def dumps(self, value: Any, /) -> bytes:
        return repr(value)  # type: ignore[return-value]


def test_an_own_serializer_carries_calls_and_results() -> None:
    own = resolve(Own())
    assert own.load_call(own.dump_call((1, 2j), {"a": b"x"})) == ((1, 2j), {"a": b"x"})
    assert own.load_value(own.dump_value({1, 2})) == {1, 2}
    assert own.converts is False
    assert JSON.converts is True


def test_errors_of_an_own_serializer_are_chained() -> None:
    with pytest.raises(SerializationError, match="SyntaxError") as broken:
        resolve(Own()).load_value(b"(")
    assert isinstance(broken.value.__cause__, SyntaxError)
    with pytest.raises(SerializationError, match=r"carried by Wrong: its dumps gave str"):
        resolve(Wrong()).dump_value(1)


@pytest.mark.parametrize("spec", ["yaml", None, object(), 5])
def test_other_serializers_are_config_errors(spec: Any) -> None:
    with pytest.raises(ConfigError, match='"json", "pickle" or an object with dumps and loads'):
        resolve(spec)


def test_pydantic_is_not_imported_for_those_who_do_not_use_it() -> None:
    code = (
        "import sys; from fastq import decoders, serializers; j = serializers.resolve('json');"
        "f = lambda a: 1; d = decoders.arguments_decoder(f, skip_first=False, codec=j);"
        "d(j.dump_call((b'x',), {})); assert 'pydantic' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
