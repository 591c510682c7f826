"""Several processes on one simulated card: memory, time and what is left when they go.

Each member is a process of its own that runs the statements a test sends it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import pytest
from soak import rounds

from vramkit.driver import Driver, Simulator

pytestmark = pytest.mark.sim_only

MIB = 1 << 20
CAPACITY = 256 * MIB

MEMBER = """
import json, os, sys, time
import vramkit
from vramkit.driver import DriverError
MIB = 1 << 20

def fits(make):
    try:
        return make()
    except DriverError as error:
        assert error.code == 2, error
        return None

for line in sys.stdin:
    code = json.loads(line)
    try:
        try:
            answer = eval(code)
        except SyntaxError:
            answer = exec(code)
    except Exception as error:
        answer = f"{type(error).__name__}: {error}"
    print(json.dumps(answer, default=repr), flush=True)
"""


class Member:
    """A process on the card."""

    def __init__(self, environment: dict[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", MEMBER],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, code: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(msgspec.json.encode(code).decode() + "\n")
        self.process.stdin.flush()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        return msgspec.json.decode(self.process.stdout.readline())

    def do(self, code: str) -> Any:
        self.begin(code)
        return self.answer()

    def open(self) -> Member:
        assert self.do("driver = vramkit.driver.open('sim'); device = driver.device()") is None
        return self

    def kill(self) -> None:
        """It stays a zombie, since nobody asks for its end yet."""
        self.process.kill()
        os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        assert self.process.wait(60) == 0

    def free(self) -> int:
        free = self.do("device.memory_info().free")
        assert isinstance(free, int), free
        return free

    def alloc(self, name: str, mebibytes: int) -> bool:
        assert self.do(f"{name} = fits(lambda: device.alloc({mebibytes} * MIB))") is None
        answer = self.do(f"{name} is not None")
        assert isinstance(answer, bool)
        return answer


Members = Callable[..., Member]


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Makes processes; `name` and `more` are settings of VRAMKIT_SIM. The folder is left empty."""
    with ExitStack() as stack:

        def make(name: str = "one", more: str = "capacity=256MiB") -> Member:
            settings = f"card={name},clock=wall,{more}"
            environment = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "VRAMKIT_SIM": settings}
            member = Member(environment)
            stack.enter_context(member.process)
            stack.callback(member.process.kill)
            return member

        yield make


def card_file(folder: Path, name: str = "one") -> Path:
    return folder / f"vramkit-sim-{os.geteuid()}" / f"card-{name}"


# Settings


@pytest.fixture
def sim(driver: Driver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Simulator]:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    assert driver.sim is not None
    yield driver.sim
    driver.sim.reset()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "arguments", [{"clock": "virtual"}, {"devices": 2}, {"scale": 10.5}], ids=str
)
def test_what_a_shared_card_cannot_have_is_refused(
    sim: Simulator, arguments: dict[str, Any]
) -> None:
    with pytest.raises(ValueError, match="share a card only with clock=wall, devices=1"):
        sim.reset(**{"card": "one", "clock": "wall", **arguments})


@pytest.mark.parametrize("name", ["", "a/b", "ä", "a b", "x" * 65])
def test_name_that_is_none_is_refused(sim: Simulator, name: str) -> None:
    with pytest.raises(ValueError, match="1 to 64 letters"):
        sim.reset(card=name, clock="wall")


def test_card_tells_its_processes(sim: Simulator, driver: Driver, tmp_path: Path) -> None:
    assert sim.card() is None
    sim.reset(card="a-1_.x", clock="wall", scale=10, capacity=CAPACITY)
    assert sim.settings().card == "a-1_.x"
    with driver.device().alloc(3 * MIB):
        card = sim.card()
        assert card is not None
        assert (card.name, card.capacity) == ("a-1_.x", CAPACITY)
        assert card.path == str(card_file(tmp_path, "a-1_.x"))
        assert [(each.pid, each.nbytes) for each in card.processes] == [(os.getpid(), 4 * MIB)]
    assert os.stat(card.path).st_mode & 0o777 == 0o600
    assert os.stat(Path(card.path).parent).st_mode & 0o777 == 0o700
    # Alone on it, a process may choose again.
    sim.reset(card="a-1_.x", clock="wall", capacity=2 * CAPACITY)
    assert driver.device().memory_info().free == 2 * CAPACITY


# Memory

IDENTITY = """
import ctypes
cuda = ctypes.CDLL(driver.path)
def identity():
    uuid, bus_id = (ctypes.c_char * 16)(), ctypes.create_string_buffer(32)
    assert cuda.cuDeviceGetUuid_v2(uuid, 0) == cuda.cuDeviceGetPCIBusId(bus_id, 32, 0) == 0
    return uuid.raw.hex(), bus_id.value.decode(), [device.attribute(50), device.attribute(33)]
def device_at(bus_id):
    found = ctypes.c_int(-1)
    return cuda.cuDeviceGetByPCIBusId(ctypes.byref(found), bus_id.encode()), found.value
"""


def test_memory_is_that_of_the_card(members: Members) -> None:
    one, other = members().open(), members().open()
    assert one.alloc("a", 200)
    assert (one.free(), other.free()) == (56 * MIB, 56 * MIB)
    assert not other.alloc("b", 100)
    assert other.alloc("c", 40)
    assert not one.alloc("d", 20)
    # Physical memory of virtual memory management, and that of pools.
    assert other.do("p = fits(lambda: device.create(32 * MIB))") is None
    assert other.do("p is None")
    assert one.do("r = vramkit.resources.AsyncResource(device=device)") is None
    refused = one.do("r.malloc(32 * MIB, stream=device.stream())")
    assert "OutOfMemory" in str(refused) or "out of memory" in str(refused), refused
    one.do("a.close()")
    assert other.do("p = device.create(32 * MIB); p2 = device.create(100 * MIB)") is None
    assert one.free() == other.free() == (256 - 40 - 132) * MIB
    pids = {one.process.pid: 0, other.process.pid: 172 * MIB}
    told = one.do("{each.pid: each.nbytes for each in driver.sim.card().processes}")
    assert told == {str(pid): nbytes for pid, nbytes in pids.items()}


def test_cards_of_other_names_are_other_cards(members: Members) -> None:
    one, same, other = members("one"), members("one"), members("two")
    for member in (one, same, other):
        member.open()
    assert one.alloc("a", 200)
    assert same.free() == 56 * MIB
    assert other.free() == CAPACITY
    for member in (one, same, other):
        assert member.do(IDENTITY) is None
    told = [member.do("identity()") for member in (one, same, other)]
    assert told[0] == told[1]
    assert not any(mine == others for mine, others in zip(told[0], told[2], strict=True))
    uuid, bus_id, domain_and_bus = told[0]
    assert len(uuid) == 32
    assert bus_id == "{:04X}:{:02X}:00.0".format(*domain_and_bus)
    assert one.do(f"device_at({bus_id!r})") == [0, 0]
    assert one.do(f"device_at({told[2][1]!r})")[0] == 101


def test_killed_process_gives_its_memory_back(members: Members) -> None:
    one, other = members().open(), members().open()
    assert other.alloc("a", 200)
    assert one.free() == 56 * MIB
    other.kill()
    assert one.alloc("b", 250)
    assert one.do("len(driver.sim.card().processes)") == 1
    third = members().open()
    assert third.free() == 6 * MIB


def test_file_of_a_killed_process_is_taken_over(members: Members, tmp_path: Path) -> None:
    one = members().open()
    assert one.alloc("a", 200)
    one.kill()
    assert card_file(tmp_path).exists()
    other = members(more="capacity=128MiB").open()
    assert other.free() == 128 * MIB
    other.leave()
    assert not list(tmp_path.iterdir())


def test_first_process_decides(members: Members) -> None:
    one = members().open()
    others = ("capacity=128MiB", "capacity=256MiB,scale=2", "capacity=256MiB,profile=pcie4-24gb")
    for more in others:
        refused = members(more=more).do("vramkit.driver.open('sim').device().memory_info()")
        assert "VRAMKIT_SIM: card one: its other processes have profile=h200" in refused
        assert "give all processes of a card the same" in refused
    one.leave()
    other = members(more="capacity=128MiB").open()
    assert other.free() == 128 * MIB


# Coming and going

# Each child waits for the others, so that all attach at once.
CROWD = """
import os, sys, random, vramkit
from vramkit.driver import DriverError
MIB = 1 << 20
ready, go = os.pipe(), os.pipe()
children = []
for number in range(int(sys.argv[1])):
    child = os.fork()
    if child == 0:
        os.close(go[1])
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        driver = vramkit.driver.open("sim")
        device = driver.device()
        choose = random.Random(number)
        held = []
        for step in range(int(sys.argv[2])):
            if held and choose.random() < 0.45:
                held.pop(choose.randrange(len(held))).close()
            else:
                try:
                    held.append(device.alloc(choose.choice((1, 3, 10, 40)) * MIB))
                except DriverError as error:
                    assert error.code == 2, error
            if step % 4 == 0:
                card = driver.sim.card()
                total = sum(each.nbytes for each in card.processes)
                assert total <= card.capacity, (total, card)
                mine = [each.nbytes for each in card.processes if each.pid == os.getpid()]
                assert len(mine) == 1 and mine[0] >= sum(each.nbytes for each in held)
        # By exit, so that handlers run; some leave memory behind.
        if number % 2:
            held.clear()
        sys.exit(0)
    children.append(child)
for child in children:
    os.read(ready[0], 1)
os.close(go[0])
os.close(go[1])
assert [os.waitpid(child, 0)[1] for child in children] == [0] * len(children)
"""


def run(program: str, folder: Path, *arguments: object) -> None:
    settings = "card=crowd,clock=wall,capacity=256MiB,data=off"
    subprocess.run(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "XDG_RUNTIME_DIR": str(folder), "VRAMKIT_SIM": settings},
        check=True,
        timeout=300,
    )


def test_sixteen_processes_at_once_leave_no_file(tmp_path: Path) -> None:
    run(CROWD, tmp_path, 16, 2)
    assert not list(tmp_path.iterdir())


def test_capacity_holds_under_a_random_load(tmp_path: Path) -> None:
    run(CROWD, tmp_path, 4, rounds(150, 5000))
    assert not list(tmp_path.iterdir())


FORKS = """
import os, sys, vramkit
MIB = 1 << 20

def pids(driver):
    return [each.pid for each in driver.sim.card().processes]

def child_of(body):
    child = os.fork()
    if child == 0:
        body()
        sys.exit(0)
    assert os.waitpid(child, 0)[1] == 0

# Before the first call, a child is a process of the card by itself.
def first():
    driver = vramkit.driver.open("sim")
    driver.device()
    assert pids(driver) == [os.getpid()]
child_of(first)

driver = vramkit.driver.open("sim")
memory = driver.device().alloc(100 * MIB)
assert pids(driver) == [os.getpid()]
# After it, it is none, and takes nothing of its parent's along.
child_of(lambda: None)
child_of(lambda: memory.close())
assert pids(driver) == [os.getpid()]
assert driver.device().memory_info().free == 156 * MIB
assert os.path.exists(driver.sim.card().path)

if len(sys.argv) > 1:  # becomes another program, of the same number and start
    os.execv(sys.executable, [sys.executable, "-c", sys.argv[1]])
"""

AFTER_EXEC = """
import os, vramkit
driver = vramkit.driver.open("sim")
assert driver.device().memory_info().free == 256 << 20
assert [each.pid for each in driver.sim.card().processes] == [os.getpid()]
"""


def test_forked_child_is_not_its_parent(tmp_path: Path) -> None:
    run(FORKS, tmp_path)
    assert not list(tmp_path.iterdir())


def test_exec_gives_memory_back(tmp_path: Path) -> None:
    run(FORKS, tmp_path, AFTER_EXEC)
    assert not list(tmp_path.iterdir())


# Files of others


def prepare(folder: Path, content: bytes = b"", mode: int = 0o600) -> Path:
    path = card_file(folder)
    path.parent.mkdir(mode=0o700)
    path.write_bytes(content)
    path.chmod(mode)
    return path


def refusal(members: Members) -> str:
    answer = members().do("vramkit.driver.open('sim').device().memory_info()")
    assert isinstance(answer, str)
    return answer


def test_file_of_another_size_is_refused(members: Members, tmp_path: Path) -> None:
    path = prepare(tmp_path, b"something else")
    assert "has 14 bytes instead of" in refusal(members)
    assert path.read_bytes() == b"something else"


def test_garbage_of_the_right_size_is_refused(members: Members, tmp_path: Path) -> None:
    one = members().open()
    size = card_file(tmp_path).stat().st_size
    one.leave()
    path = prepare(tmp_path, b"\xa5" * size)
    assert "is no card of this version of vramkit; remove it" in refusal(members)
    assert path.read_bytes() == b"\xa5" * size


def test_file_that_others_can_use_is_refused(members: Members, tmp_path: Path) -> None:
    prepare(tmp_path, mode=0o660)
    assert "is not a file that only this user can use" in refusal(members)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_file_of_another_user_is_refused(members: Members, tmp_path: Path) -> None:
    os.chown(prepare(tmp_path), 65534, 65534)
    assert "is not a file that only this user can use" in refusal(members)


def test_link_is_refused(members: Members, tmp_path: Path) -> None:
    path = prepare(tmp_path)
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert "cannot open" in refusal(members)


def test_folder_that_others_can_use_is_refused(members: Members, tmp_path: Path) -> None:
    card_file(tmp_path).parent.mkdir(mode=0o700)
    card_file(tmp_path).parent.chmod(0o777)
    assert "is not a folder that only this user can use" in refusal(members)


# Time. A busy machine makes processes later, never earlier: what takes turns has lower bounds, and
# what runs side by side is told by the card's own clock.

WORK = """
def work(issue, n):
    stream = device.stream()
    begin = time.monotonic()
    with device.timeline() as timeline:
        for _ in range(n):
            issue(stream)
    return begin, time.monotonic(), [span.end - span.start for span in timeline.spans]

pinned = device.alloc_pinned(64 * MIB)
memory = device.alloc(64 * MIB)
up = lambda stream: device.copy(memory.address, pinned.address, 64 * MIB, stream=stream)
down = lambda stream: device.copy(pinned.address, memory.address, 64 * MIB, stream=stream)
spin = lambda stream: device.kernels.spin(1_000_000, stream=stream)
"""
TIMED = "capacity=256MiB,data=off,checker=off"
N = 40


class Worked(NamedTuple):
    begin: float  # on the system's clock, as the end
    end: float
    durations: list[float]  # of each operation, on the card's clock


@pytest.fixture
def pair(members: Members) -> list[Member]:
    both = [members(more=TIMED).open() for _ in range(2)]
    for member in both:
        assert member.do(WORK) is None
    return both


def together(pair: list[Member], *what: str) -> list[Worked]:
    for member, each in zip(pair, what, strict=True):
        member.begin(f"work({each}, {N})")
    answers = [member.answer() for member in pair]
    assert all(isinstance(answer, list) for answer in answers), answers
    return [Worked(*answer) for answer in answers]


@pytest.mark.parametrize("what", ["up", "down", "spin"])
def test_work_of_two_processes_on_one_lane_takes_the_time_of_both(
    pair: list[Member], what: str
) -> None:
    alone = Worked(*pair[0].do(f"work({what}, {N})"))
    both = together(pair, what, what)
    passed = max(each.end for each in both) - min(each.begin for each in both)
    assert passed >= 1.99 * sum(alone.durations)


@pytest.mark.parametrize("what", ["up", "down"])
def test_copies_beside_a_process_that_computes_cost_neither_anything(
    pair: list[Member], what: str
) -> None:
    alone = [Worked(*pair[0].do(f"work(spin, {N})")), Worked(*pair[1].do(f"work({what}, {N})"))]
    for apart, beside in zip(alone, together(pair, "spin", what), strict=True):
        assert beside.durations == pytest.approx(apart.durations, rel=1e-3)
