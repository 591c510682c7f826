"""How large and how long the programs of the sharing benchmark are.

`small` is `full` with 1/256 of the memory. On the simulated card the link is slower by as much, so
that a switch takes as long as one of 12 GiB would.
"""

from dataclasses import dataclass

MIB = 1 << 20
GIB = 1 << 30
LINK, DUPLEX = 55.3e9, 50.1e9  # of an H200


@dataclass(frozen=True)
class Scale:
    """Bytes and seconds."""

    name: str
    link: float
    """Of an H200's rates: that of the simulated card."""
    program: int
    """Memory of one of the two programs."""
    managed: int
    """The same where it is managed memory: all together must stay far below the card's size."""
    train: int
    slack: int
    """What a program may take beside its blocks."""
    turn: float
    """The quantum where single switches are measured."""
    quantum: tuple[float, float]
    work: float
    """A program alone, for the totals: several turns of the short quantum."""
    longer: int
    """... so many times that for the long one."""
    loop: float
    """A program whose time under `vramkit run` is compared with its native time."""
    additions: int
    switches: int

    @property
    def capacity(self) -> int:
        """Of the simulated card."""
        return 3 * self.program

    @property
    def reserve(self) -> int:
        return self.program // 4

    def profile(self) -> str:
        """An H200 with this link."""
        rates = {
            "host_to_device_bytes_per_s": LINK,
            "device_to_host_bytes_per_s": LINK,
            "duplex_bytes_per_s": DUPLEX,
            "pageable_host_to_device_bytes_per_s": 8.6e9,
            "pageable_device_to_host_bytes_per_s": 15.3e9,
        }
        lines = [f"{name} = {rate * self.link:.0f}" for name, rate in rates.items()]
        return "\n".join(['name = "scaled"', 'extends = "h200"', "", "[link]", *lines, ""])


SCALES = {
    "full": Scale(
        name="full",
        link=1.0,
        program=12 * GIB,
        managed=3 * GIB,
        train=1 * GIB,
        slack=128 * MIB,
        turn=0.6,
        quantum=(2.0, 30.0),
        work=10.0,
        longer=4,
        loop=3.0,
        additions=4000,
        switches=8,
    ),
    "small": Scale(
        name="small",
        link=1 / 256,
        program=48 * MIB,
        managed=48 * MIB,
        train=1 * MIB,
        slack=2 * MIB,
        turn=0.5,
        quantum=(1.0, 3.0),
        work=3.0,
        longer=2,
        loop=1.0,
        additions=40,
        switches=5,
    ),
}
