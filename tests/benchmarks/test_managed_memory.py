"""What is concluded from the figures of managed memory, and that the docs show them."""

import msgspec
import pytest

GIB = 1 << 30


def report(shown: list[int | None], process: bool = True):
    """A card whose NVML shows so much: with a context, untouched, swept and moved out."""
    import machine
    from managed_memory import EVICTED, IDLE, NATIVE, SWEPT, UNTOUCHED, Moment, Report

    nvml = [(each, None) if process else (None, each) for each in shown]
    taken = [0, 0, 6 * GIB, 0]
    rates = [None, 90.0, 4000.0, 11.0]
    names = (IDLE, UNTOUCHED, SWEPT, EVICTED)
    rows = zip(names, nvml, taken, rates, strict=True)
    moments = [Moment(name, *pair, used, rate) for name, pair, used, rate in rows]
    moments.insert(1, Moment(NATIVE, None, None, 6 * GIB, 4100.0))
    return Report("managed_memory", False, "card", machine.collect(), 6 * GIB, moments)


@pytest.mark.parametrize(
    ("shown", "said"),
    [
        ([GIB, GIB, 7 * GIB, GIB], "NVML counts what is on the card."),
        ([GIB, GIB, GIB, GIB], "NVML does not count managed memory"),
        ([GIB, GIB, 4 * GIB, GIB], "NVML counts a part of what is on the card."),
    ],
)
@pytest.mark.parametrize("process", [True, False])
def test_the_answer_follows_from_what_is_shown(
    shown: list[int | None], said: str, process: bool
) -> None:
    from managed_memory import answer

    found = answer(report(shown, process))
    assert f"So for the {'process' if process else 'card'} {said}" in found
    assert f"for the {'card' if process else 'process'}" not in found
    assert "what has left" not in found
    assert "0% before it is touched, 100% after a sweep, 0% when evicted" in found
    assert "4,000 GB/s, memory of cuMemAlloc at 4,100 GB/s" in found


def test_random_order_is_told_where_it_was_measured() -> None:
    from managed_memory import EVICTED_SHUFFLED, SHUFFLED_AGAIN, Moment, answer

    plain = report([GIB] * 4)
    assert "random" not in answer(plain)
    rates = {EVICTED_SHUFFLED: 2.51, SHUFFLED_AGAIN: 3000.0}
    more = [Moment(what, None, None, 0, value) for what, value in rates.items()]
    found = answer(msgspec.structs.replace(plain, moments=[*plain.moments, *more]))
    assert "In random order of pages it comes back at 2.5 GB/s" in found
    assert "is swept in that order at 3,000 GB/s" in found


def test_what_has_left_and_is_counted_is_said() -> None:
    from managed_memory import answer

    found = answer(report([GIB, GIB, 7 * GIB, 7 * GIB], process=False))
    assert "So for the card NVML counts what is on the card, and what has left it too." in found


def test_without_nvml_nothing_is_said_of_it() -> None:
    from managed_memory import answer

    assert "NVML" not in answer(report([None] * 4))


@pytest.mark.parametrize("process", [True, False])
def test_claims_get_what_managed_memory_adds_to_a_context(process: bool) -> None:
    from managed_memory import managed

    found = managed(report([GIB, GIB, 4 * GIB, GIB], process))
    assert (found.nbytes, found.shown) == (6 * GIB, 3 * GIB)
    assert (found.native_rate, found.first_rate, found.later_rate) == (4.1e12, 90e9, 4e12)
    assert managed(report([None] * 4)).shown is None


def test_the_page_of_claims_takes_a_card_s_answer(tmp_path) -> None:
    import lab_pages
    import programs

    path = tmp_path / "managed_memory_h200.json"
    assert lab_pages.on_card(path) is None
    programs.write(report([GIB] * 4), path)
    found = lab_pages.on_card(path)
    assert found is not None and (found.card, found.shown) == ("card", 0)
    programs.write(msgspec.structs.replace(report([GIB] * 4), simulated=True), path)
    assert lab_pages.on_card(path) is None


def test_the_docs_show_the_result_files() -> None:
    from managed_memory import DOCUMENT, document_tables, written

    document = DOCUMENT.read_text("utf-8")
    assert written(document, document_tables()) == document


@pytest.mark.sim_only
def test_the_simulated_figures_are_those_of_the_file() -> None:
    """In virtual time: the same on any machine."""
    import subprocess
    import sys

    import managed_memory

    path = managed_memory.result_file("sim")
    kept = msgspec.json.decode(path.read_bytes(), type=managed_memory.Report)
    command = [sys.executable, managed_memory.__file__, "--driver", "sim", "--json", "/dev/stdout"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    text = done.stdout[: done.stdout.rindex("}") + 1]
    found = msgspec.json.decode(text, type=managed_memory.Report)
    assert found.moments == kept.moments
