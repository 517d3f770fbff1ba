"""Entries that no job can be made of: each goes to `dead`, and the worker lives."""

import pytest

from servers import Server
from workers import DEADLINE_S, Queue, failure, still_works, working


async def add(x: int, y: int) -> int:
    return x + y


RAW: dict[str, tuple[dict[str, str | bytes], str]] = {
    "garbage": ({"f": "add", "d": b"\xff\x00\x01"}, "undecodable"),
    "half JSON": ({"f": "add", "d": "[1,"}, "undecodable"),
    "no call": ({"f": "add", "d": "7"}, "undecodable"),
    "no payload": ({"f": "add"}, "undecodable"),
    "no function": ({"d": "[1,2]"}, "unknown_function"),
    "neither": ({"foo": "bar"}, "unknown_function"),
    "unknown": ({"f": "nobody", "d": "[1,2]"}, "unknown_function"),
    "no text": ({"f": b"\xff\xfe", "d": "[1,2]"}, "unknown_function"),
    "too few": ({"f": "add", "d": "[1]"}, "arguments"),
    "too many": ({"f": "add", "d": "[1,2,3]"}, "arguments"),
    "other types": ({"f": "add", "d": '["a",2]'}, "arguments"),
    "other names": ({"f": "add", "d": '{"a":[1],"k":{"z":1}}'}, "arguments"),
    "options": ({"f": "add", "d": "[1,2]", "o": "{timeout}"}, "undecodable"),
    "options' types": ({"f": "add", "d": "[1,2]", "o": '{"timeout":"x"}'}, "undecodable"),
    "keep": ({"f": "add", "d": "[1,2]", "k": "long"}, "undecodable"),
    "huge keep": ({"f": "add", "d": "[1,2]", "k": "9" * 30}, "undecodable"),
    "tries": ({"f": "add", "d": "[1,2]", "t": "many"}, "undecodable"),
    "huge tries": ({"f": "add", "d": "[1,2]", "t": "9" * 30}, "undecodable"),
    "nesting": ({"f": "add", "d": "[" * 100_000}, "undecodable"),
}


@pytest.mark.servers
async def test_entries_that_cannot_run_go_to_dead_with_all_they_hold(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, worker):
        ids = {name: queue.add(**fields) for name, (fields, _) in RAW.items()}
        for name, job_id in ids.items():
            assert (await failure(client.job(job_id))).reason == RAW[name][1], name
        assert await still_works(client)
    assert worker.failed == len(RAW)
    dead = {entry["id"].decode(): entry for entry in queue.dead()}
    for name, job_id in ids.items():
        fields = {key: value.encode() if isinstance(value, str) else value
                  for key, value in RAW[name][0].items()}  # fmt: skip
        assert fields.items() - {("t", fields.get("t"))} <= dead[job_id].items()
    assert (queue.length(), queue.pending()) == (0, {})


async def test_messages_say_what_is_wrong_with_an_entry(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, _):
        texts = {
            name: (await failure(client.job(queue.add(**RAW[name][0])))).message for name in RAW
        }
    assert texts["unknown"] == (
        "No function 'nobody' is registered in this worker. Add it to functions, or deploy the "
        "workers that know it."
    )
    assert texts["no function"] == "The entry names no function: its field f is missing."
    assert texts["no payload"] == "the entry has no payload: its field d is missing"
    assert texts["options"].startswith("the entry's options (field o): JSON is malformed")
    assert texts["huge keep"].endswith("the server cannot keep a result so long")
    assert texts["garbage"].startswith("add(): the payload is not the JSON of a call")
    assert "'y'" in texts["too few"]
    assert "'x'" in texts["other types"]


async def test_fields_of_a_newer_fastq_are_passed_over(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add) as (client, _):
        job_id = queue.add(f="add", d="[1,2]", zz="new", o='{"timeout":5,"colour":"red"}')
        assert await client.job(job_id).result(DEADLINE_S) == 3


async def test_a_payload_of_another_serializer_is_undecodable(server: Server) -> None:
    queue = Queue(server)
    async with working(server, add, serializer="pickle") as (client, _):
        error = await failure(client.job(queue.add(f="add", d="[1,2]")))
        assert error.reason == "undecodable"
        assert "do both sides use the same serializer" in error.message
        assert await still_works(client)
