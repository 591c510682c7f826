"""`vramkit doctor`"""

from __future__ import annotations


def doctor(
    *,
    json: bool = False,
    driver: str | None = None,
    device: int = 0,
    quick: bool = False,
) -> int:
    """Examine the host, the driver and one card.

    Parameters
    ----------
    json
        The facts and the verdict as one JSON document.
    driver
        cuda, sim or sim:PROFILE. Default: VRAMKIT_DRIVER, else cuda.
    device
        The number of the card. Default: 0.
    quick
        Smaller sizes and fewer samples.
    """
    from vramkit.cli.console import output, print_json, progress
    from vramkit.cli.opening import open_driver
    from vramkit.doctor import examine
    from vramkit.doctor.words import print_examination

    with progress() as tell:
        examination = examine(lambda: open_driver(driver), device, quick=quick, tell=tell)
    if json:
        print_json(examination)
    else:
        print_examination(output(), examination)
    return 1 if any(finding.severity == "problem" for finding in examination.findings) else 0
