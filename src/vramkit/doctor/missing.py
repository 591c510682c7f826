"""Findings for a machine whose driver is not there or does not answer."""

from __future__ import annotations

from pathlib import Path

from vramkit.doctor.facts import Finding

TRY_SIMULATED = "To try vramkit without a card: VRAMKIT_DRIVER=sim, or --driver sim."

# What the common refusals of the driver mean, by CUDA error code.
REFUSALS = {
    1: "On the simulated GPU: VRAMKIT_SIM has a setting that it refuses; stderr says which.",
    3: "Restart the program; a child made by fork cannot use its parent's driver.",
    34: "This libcuda.so.1 is a stub for linking. Take the toolkit's stubs folder out of "
    "LD_LIBRARY_PATH.",
    35: "The driver is older than the library: install a newer NVIDIA driver.",
    100: "No card is visible: look at CUDA_VISIBLE_DEVICES and `nvidia-smi`; in a container, "
    "start it with --gpus all.",
    101: "No card has this number: `nvidia-smi -L` lists them; CUDA_VISIBLE_DEVICES "
    "renumbers them.",
    802: "The system is not ready: is the fabric manager running?",
    803: "The kernel module and libcuda.so.1 have different versions: reboot, or reinstall the "
    "driver.",
    999: "Often a kernel module in a bad state: `dmesg`, then reload it or reboot.",
}


def missing_driver(reason: str, root: Path = Path("/")) -> Finding:
    """No library. Where the kernel's half is there, a container without the user half is likely."""
    module = (root / "proc/driver/nvidia/version").exists()
    cards = sorted(path.name for path in root.glob("dev/nvidia[0-9]*"))
    if module or cards:
        seen = "the kernel module is loaded" if module else f"/dev has {', '.join(cards)}"
        return Finding(
            severity="problem",
            what=f"NVIDIA's driver library is missing, although {seen}.",
            why=reason,
            fix="In a container: start it with --gpus all (NVIDIA Container Toolkit). Otherwise "
            f"install the driver's libcuda package of the same version. {TRY_SIMULATED}",
        )
    return Finding(
        severity="problem",
        what="There is no NVIDIA driver: no libcuda.so.1, no kernel module, no /dev/nvidia*.",
        why=reason,
        fix=f"Install NVIDIA's driver where there is a card. {TRY_SIMULATED}",
    )


def refusing_driver(reason: str, code: int) -> Finding:
    """The library is there, a call of it failed."""
    return Finding(
        severity="problem",
        what="The driver does not work.",
        why=reason,
        fix=REFUSALS.get(code, "`nvidia-smi` may say more.") + f" {TRY_SIMULATED}",
    )


def broken_measurement(what: str, reason: str) -> Finding:
    return Finding(
        severity="problem",
        what=f"Measuring {what} failed.",
        why=reason,
        fix="Look for other programs on the card (`nvidia-smi`), and whether memory is short.",
    )
