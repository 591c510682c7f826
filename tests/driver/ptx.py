"""Runs a kernel of kernels.ptx thread by thread, so that its text is tested without a card.

It knows the instructions that our kernels use, and refuses others. Registers have the width that
they are declared with; an access must lie inside of the memory that is given, and be aligned.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from importlib.resources import files

WIDTHS = {"u8": 1, "u16": 2, "u32": 4, "u64": 8}


class Memory:
    """One range of device memory."""

    def __init__(self, address: int, content: bytes, *, writable: bool = False) -> None:
        self.address = address
        self.content = bytearray(content)
        self.writable = writable


class Kernel:
    """An entry of the module, by name."""

    def __init__(self, name: str) -> None:
        text = files("vramkit.driver").joinpath("kernels.ptx").read_text("utf-8")
        text = re.sub(r"//.*", "", text)
        entry = re.search(rf"\.entry {name}\((.*?)\)\s*\{{(.*?)\n\}}", text, re.DOTALL)
        assert entry is not None, name
        self.parameters: list[str] = re.findall(r"\.param \.u\d+ (\w+)", entry[1])
        self.bits: dict[str, int] = {}
        self.labels: dict[str, int] = {}
        self.lines: list[tuple[str, str, list[str]]] = []
        for statement in re.split(r";|(?<=\w:)\n", entry[2]):
            self._read(statement.strip())

    def _read(self, statement: str) -> None:
        declared = re.fullmatch(r"\.reg \.(pred|b16|b32|b64) (.*)", statement, re.DOTALL)
        if declared:
            bits = 1 if declared[1] == "pred" else int(declared[1][1:])
            self.bits |= {each.strip(): bits for each in declared[2].split(",")}
        elif statement.endswith(":"):
            self.labels[statement[:-1]] = len(self.lines)
        elif statement:
            parts = re.fullmatch(r"(?:@(!?%\w+) )?([\w.]+)(?: (.*))?", statement, re.DOTALL)
            assert parts is not None, statement
            operands = re.findall(r"\{.*?\}|\[.*?\]|[^,\s]+", parts[3] or "")
            self.lines.append((parts[1] or "", parts[2], operands))

    def run(self, arguments: list[int], memory: list[Memory], blocks: int, threads: int) -> None:
        """All threads, one after the other: right for kernels whose threads do not meet."""
        assert len(arguments) == len(self.parameters)
        for block in range(blocks):
            for thread in range(threads):
                special = {
                    "%ctaid.x": block,
                    "%nctaid.x": blocks,
                    "%ntid.x": threads,
                    "%tid.x": thread,
                }
                given = dict(zip(self.parameters, arguments, strict=True))
                _Thread(self, given, special, memory).run()


class _Thread:
    def __init__(
        self,
        kernel: Kernel,
        parameters: dict[str, int],
        special: dict[str, int],
        memory: list[Memory],
    ) -> None:
        self.kernel, self.parameters, self.special = kernel, parameters, special
        self.memory = memory
        self.registers: dict[str, int] = {}

    def run(self) -> None:
        at = 0
        while True:
            guard, name, operands = self.kernel.lines[at]
            at += 1
            if guard and self.value(guard.lstrip("!")) == guard.startswith("!"):
                continue
            if name == "ret":
                return
            if name == "bra":
                at = self.kernel.labels[operands[0]]
            elif name.startswith(("ld.", "st.")):
                self.access(name.split("."), operands)
            elif name == "red.global.add.u64":
                self.add(*operands)
            else:
                self.set(operands[0], self.compute(name, [self.value(x) for x in operands[1:]]))

    def value(self, operand: str) -> int:
        """Of a register that was written before, a special one, or a number."""
        if operand in self.kernel.bits:
            return self.registers[operand]
        if operand in self.special:
            return self.special[operand]
        return int(operand, 0)

    def set(self, register: str, value: int) -> None:
        self.registers[register] = value & (1 << self.kernel.bits[register]) - 1

    def access(self, name: list[str], operands: list[str]) -> None:
        store = name[0] == "st"
        place, data = operands if store else reversed(operands)
        base, _, offset = place.strip("[]").partition("+")
        if name[1] == "param":
            self.set(data, self.parameters[base])
            return
        registers = [each.strip() for each in data.strip("{}").split(",")]
        width = WIDTHS[name[-1]]
        assert len(registers) == (int(name[2][1:]) if len(name) == 4 else 1)
        address = self.value(base) + int(offset or 0)
        assert address % (width * len(registers)) == 0, (name, address)
        for number, register in enumerate(registers):
            at = address + number * width
            (memory,) = (
                each
                for each in self.memory
                if each.address <= at and at + width <= each.address + len(each.content)
            )
            part = slice(at - memory.address, at - memory.address + width)
            if store:
                assert memory.writable
                kept = self.value(register) & (1 << 8 * width) - 1
                memory.content[part] = kept.to_bytes(width, "little")
            else:
                self.set(register, int.from_bytes(memory.content[part], "little"))

    def add(self, place: str, register: str) -> None:
        """An atomic addition: as a load and a store, since the threads run one after the other."""
        added = self.value(register)
        self.access(["ld", "global", "u64"], [register, place])
        self.set(register, self.value(register) + added)
        self.access(["st", "global", "u64"], [place, register])
        self.set(register, added)

    def compute(self, name: str, given: list[int]) -> int:
        for start, operation in OPERATIONS.items():
            if name == start or name.startswith(start + "."):
                return operation(*given)
        raise NotImplementedError(name)


def _prmt(low: int, high: int, control: int) -> int:
    source = (low | high << 32).to_bytes(8, "little")
    chosen = []
    for lane in range(4):
        select = control >> 4 * lane & 15
        byte = source[select & 7]
        # With its highest bit set, a selector gives the sign of the byte, eight times.
        chosen.append(byte if select < 8 else 0xFF * (byte >> 7))
    return int.from_bytes(bytes(chosen), "little")


def _lop3(a: int, b: int, c: int, table: int) -> int:
    result = 0
    for row in range(8):
        if table >> row & 1:
            x = a if row & 4 else ~a
            y = b if row & 2 else ~b
            z = c if row & 1 else ~c
            result |= x & y & z
    return result


OPERATIONS: dict[str, Callable[..., int]] = {
    "mov": lambda x: x,
    "cvta": lambda x: x,
    "cvt": lambda x: x,
    "mul.wide.u32": lambda x, y: x * y,
    "mul.lo.u64": lambda x, y: x * y,
    "add": lambda x, y: x + y,
    "and": lambda x, y: x & y,
    "or": lambda x, y: x | y,
    "xor": lambda x, y: x ^ y,
    "shl": lambda x, by: x << by,
    "shr.u32": lambda x, by: x >> by,
    "shr.u64": lambda x, by: x >> by,
    "prmt.b32": _prmt,
    "lop3.b32": _lop3,
    "setp.lt.u64": lambda x, y: x < y,
    "setp.ge.u64": lambda x, y: x >= y,
}
