"""What all tests share: the choice of driver, a fresh simulated GPU each, and the check for leaks.

Works with any installed vramkit; nothing here looks into a build folder.
"""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import pytest
from browser import MISSING, Browser, find_browser
from soak import SOAKING

if TYPE_CHECKING:
    from vramkit.driver import Driver

# What the driver object under test may keep while it is open; everything else is the test's.
KEPT_BY_THE_DRIVER = {"contexts", "modules"}

CALL_PASSED = pytest.StashKey[bool]()

# Property tests: the same examples in every run, others in every soak, and no limit on the time of
# one example, which on a shared machine says nothing. Not needed on a machine that runs only the
# conformance suite.
try:
    from hypothesis import settings
except ModuleNotFoundError:
    pass
else:
    settings.register_profile("vramkit", deadline=None, derandomize=not SOAKING)
    settings.load_profile("vramkit")


# Options and markers


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--driver",
        default="sim",
        metavar="sim[:PROFILE]|cuda",
        help="driver under test: the simulated GPU (default) or NVIDIA's",
    )
    parser.addoption(
        "--cluster",
        action="store_true",
        help="also run the tests that start clusters (`make test-cluster`)",
    )


def pytest_configure(config: pytest.Config) -> None:
    driver = config.getoption("driver")
    if driver.partition(":")[0] not in ("sim", "cuda") or driver.startswith("cuda:"):
        raise pytest.UsageError(f"--driver is {driver!r}; it may be sim, sim:PROFILE or cuda")
    hear_interrupts()


def hear_interrupts() -> None:
    """A shell without job control starts what is in the background with SIGINT ignored, and all
    that these start inherits it. Tests of Ctrl-C would wait for ever."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header(config: pytest.Config) -> str:
    return f"driver: {config.getoption('driver')}"


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    on_card = config.getoption("driver") == "cuda"
    with_clusters = config.getoption("cluster")
    for item in items:
        if not with_clusters and item.get_closest_marker("cluster"):
            item.add_marker(pytest.mark.skip(reason="starts a cluster: `make test-cluster`"))
        if on_card and item.get_closest_marker("sim_only"):
            item.add_marker(pytest.mark.skip(reason="needs the simulated GPU"))
        for marker in item.iter_markers("frameworks"):
            missing = [name for name in marker.args if find_spec(name) is None]
            if not on_card or missing:
                reason = f"needs a card and {', '.join(missing or marker.args)}"
                item.add_marker(pytest.mark.skip(reason=reason))


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is there before the tests is no test's: gc.collect() need not look at it each time."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    report = yield
    if report.when == "call":
        item.stash[CALL_PASSED] = report.passed
    return report


# The driver under test


def sim_options(node: pytest.Item, spec: str) -> dict[str, Any]:
    """Arguments of Simulator.reset: the profile of --driver, then markers, the nearest last."""
    profile = spec.partition(":")[2]
    options: dict[str, Any] = {"profile": profile} if profile else {}
    for marker in reversed(list(node.iter_markers("sim"))):
        options.update(marker.kwargs)
    return options


@pytest.fixture
def driver(request: pytest.FixtureRequest) -> Iterator[Driver]:
    """The open driver; a fresh simulated GPU, to be left empty and without reports."""
    import vramkit

    spec = request.config.getoption("driver")
    opened = vramkit.driver.open(spec)
    if opened.sim is not None:
        opened.sim.reset(**sim_options(request.node, spec))
    yield opened
    # A failed test keeps its objects alive in the traceback, and has said what is wrong.
    if opened.sim is None or not request.node.stash.get(CALL_PASSED, False):
        return
    check_nothing_is_left(opened)
    if not request.node.get_closest_marker("expects_reports"):
        check_nothing_is_reported(opened)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """For tests of pages; they are skipped where there is none."""
    executable = find_browser()
    if executable is None:
        pytest.skip(MISSING)
    with Browser(executable) as opened:
        yield opened


# What a test may not leave behind


def left_behind(driver: Driver) -> dict[str, int]:
    assert driver.sim is not None
    live = driver.sim.live_objects()
    return {kind: n for kind, n in live.items() if n and kind not in KEPT_BY_THE_DRIVER}


def check_nothing_is_left(driver: Driver) -> None:
    if left_behind(driver):
        # pytest.raises leaves a cycle through the test's frame, which still holds its variables.
        gc.collect()
    left = left_behind(driver)
    if left:
        listed = ", ".join(f"{n} {kind}" for kind, n in sorted(left.items()))
        pytest.fail(f"the test left behind: {listed}", pytrace=False)


def check_nothing_is_reported(driver: Driver) -> None:
    assert driver.sim is not None
    reports = driver.sim.reports()
    if reports:
        listed = "\n".join(f"  {report}" for report in reports)
        pytest.fail(f"the checker has {len(reports)} report(s):\n{listed}", pytrace=False)
