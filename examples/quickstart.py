"""The first minute with fastq.

In one terminal, from the folder above:   fastq-worker examples.quickstart:Worker
In another:                               python examples/quickstart.py
"""

import asyncio
import time

import fastq
from fastq import Context, WorkerSettings


async def add(ctx: Context, x: int, y: int) -> int:
    return x + y


@fastq.job(timeout=30, keep_result=60)
async def fetch(url: str) -> str:
    await asyncio.sleep(0.1)  # a request would wait here, and other jobs run meanwhile
    return f"fetched {url}"


def thumbnail(path: str) -> str:
    time.sleep(0.1)  # a function without async runs in a thread
    return path + ".png"


class Worker(WorkerSettings):
    functions = [add, fetch, thumbnail]


async def main() -> None:
    async with fastq.Client() as client:
        job = await client.enqueue(add, 1, 2)
        print(f"1 + 2 = {await job.result(timeout=10)}")

        urls = [f"https://example.org/{n}" for n in range(3)]
        jobs = await client.enqueue_many(fastq.call(fetch, url) for url in urls)
        for each in jobs:
            print(await each.result(timeout=10))

        by_name = await client.enqueue("thumbnail", "cat.jpg")
        print(await by_name.result(timeout=10))


if __name__ == "__main__":
    asyncio.run(main())
