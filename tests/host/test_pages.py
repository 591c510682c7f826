"""Mappings in huge pages: size, alignment, advice, population, and who keeps them."""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from host.mappings import is_mapped, mapped, resident
from vramkit.host import pages as module
from vramkit.host.available import HostMemoryError
from vramkit.host.pages import HUGE, HostPages, default_threads

PAGE = 4096
MIB = 1 << 20

with_huge_pages = pytest.mark.skipif(
    "[never]" in Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text(),
    reason="transparent huge pages are switched off",
)


def whole_mapping(pages: HostPages) -> tuple[int, int]:
    """Address and size, with what the alignment adds."""
    with pages.hold() as held:
        return ctypes.addressof(ctypes.c_char.from_buffer(held)), len(held)


@pytest.mark.parametrize("nbytes", [1, PAGE, PAGE + 1, HUGE, HUGE + 1, 5 * MIB])
def test_memory_is_whole_pages_from_a_huge_page_boundary(nbytes: int) -> None:
    pages = HostPages(nbytes)
    assert pages.address % HUGE == 0
    assert pages.nbytes == -(-nbytes // PAGE) * PAGE
    assert resident(pages.address, pages.nbytes) == 0
    pages.close()


@pytest.mark.parametrize("threads", [1, 2, 3, 16])
@pytest.mark.parametrize("nbytes", [1, PAGE, 3 * HUGE, 5 * HUGE + 5 * PAGE])
def test_every_page_is_populated_and_none_beyond(nbytes: int, threads: int) -> None:
    pages = HostPages(nbytes)
    pages.populate(threads)
    assert resident(pages.address, pages.nbytes) == pages.nbytes
    assert resident(*whole_mapping(pages)) == pages.nbytes
    pages.close()


@with_huge_pages
def test_huge_pages_are_advised_where_they_fit() -> None:
    pages = HostPages(2 * HUGE + PAGE)
    whole, tail = mapped(pages.address, pages.nbytes)
    assert (whole.start, whole.end) == (pages.address, pages.address + 2 * HUGE)
    assert "hg" in whole.flags
    assert "nh" in tail.flags
    pages.close()


@with_huge_pages
def test_small_pages_on_request() -> None:
    pages = HostPages(2 * HUGE, huge=False)
    (only,) = mapped(pages.address, pages.nbytes)
    assert "nh" in only.flags
    pages.close()


def test_a_kernel_without_huge_pages_is_no_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.mmap, "MADV_HUGEPAGE", 12345)
    monkeypatch.setattr(module.mmap, "MADV_NOHUGEPAGE", 12345)
    pages = HostPages(HUGE)
    pages.populate(1)
    pages.close()


def test_an_older_kernel_gets_its_pages_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MADV_POPULATE_WRITE", 12345)
    pages = HostPages(3 * HUGE + PAGE)
    pages.populate(2)
    assert resident(pages.address, pages.nbytes) == pages.nbytes
    pages.close()


@pytest.mark.parametrize(
    ("code", "kind"), [(errno.ENOMEM, HostMemoryError), (errno.EFAULT, OSError)]
)
def test_a_populate_that_fails_is_an_error(
    monkeypatch: pytest.MonkeyPatch, code: int, kind: type[Exception]
) -> None:
    def refuse(address: int, nbytes: int, advice: int) -> int:
        ctypes.set_errno(code)
        return -1

    monkeypatch.setattr(module, "_madvise", refuse)
    pages = HostPages(HUGE)
    with pytest.raises(kind, match=os.strerror(code)):
        pages.populate(1)
    assert resident(pages.address, pages.nbytes) == 0
    pages.close()


def test_a_mapping_that_is_refused_is_an_error() -> None:
    with pytest.raises(HostMemoryError, match="refuses to map 128 TiB of host memory"):
        HostPages(1 << 47)


def test_progress_is_told_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "PART", HUGE)
    pages = HostPages(3 * HUGE + 1)
    told: list[int] = []
    pages.populate(2, told.append)
    assert told == [HUGE, 2 * HUGE, 3 * HUGE, pages.nbytes]
    pages.close()


def test_an_error_of_progress_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    """At most one part is under way then; the others are not begun."""
    calls: list[int] = []
    ending = threading.Event()

    class Threads(ThreadPoolExecutor):
        def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
            super().shutdown(wait=False, cancel_futures=cancel_futures)
            ending.set()
            super().shutdown(wait=wait)

    def populate(address: int, nbytes: int) -> None:
        if calls:
            ending.wait()
        calls.append(address)

    def tell(done: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(module, "PART", HUGE)
    monkeypatch.setattr(module, "ThreadPoolExecutor", Threads)
    monkeypatch.setattr(module, "_populate", populate)
    pages = HostPages(8 * HUGE)
    with pytest.raises(KeyboardInterrupt):
        pages.populate(1, tell)
    assert len(calls) <= 2
    pages.close()
    assert not is_mapped(pages.address)


def test_a_hold_keeps_the_memory_after_close() -> None:
    pages = HostPages(PAGE)
    address, held = pages.address, pages.hold()
    pages.close()
    assert is_mapped(address)
    del pages
    held[-1] = 1
    held.release()
    del held
    assert not is_mapped(address)


def test_threads_are_the_cpus_of_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(3)))
    assert default_threads() == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(96)))
    assert default_threads() == 16
