"""On a debug build of the core, no test here may leave an object of it behind."""

import gc
from collections.abc import Iterator

import pytest

from fastq._core import DEBUG, live_objects


@pytest.fixture(scope="session", autouse=True)
def _fast_collections() -> Iterator[None]:
    """What was there before the tests is not gone through again after each of them."""
    if DEBUG:
        gc.freeze()
    yield
    gc.unfreeze()


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    if not DEBUG:
        yield
        return
    before = settled_count()
    yield
    assert settled_count() == before, "objects of the core outlived their test"


def settled_count() -> dict[str, int]:
    # Twice: what the first round frees may have been all that held another cycle.
    gc.collect()
    gc.collect()
    return live_objects()
