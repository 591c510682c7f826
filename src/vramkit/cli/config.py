"""`vramkit config [NAME [VALUE]]`"""

from __future__ import annotations

from vramkit.cli.errors import UsageError


def config(
    name: str | None = None, value: str | None = None, /, *, card: str = "all", json: bool = False
) -> int:
    """Show or change how cards are shared.

    Parameters
    ----------
    name
        A setting: quantum, window, policy, limit, host_limit, budget, reserve, ...
    value
        Its new value; without one the present value is shown.
    card
        For budget: the UUID of one card, as `vramkit status` shows it. Default: all.
    json
        The settings as one JSON document.
    """
    import msgspec

    from vramkit.cli.console import print_json
    from vramkit.share import paths
    from vramkit.share.connect import Controls, DaemonError, NoDaemonError
    from vramkit.share.settings import (
        SETTINGS,
        SettingError,
        ShareSettings,
        changed,
        read_settings,
        write_settings,
    )

    key = None if name is None else name.replace("-", "_")
    if key is not None and key not in SETTINGS:
        raise UsageError(f"there is no setting {name}; there are {', '.join(SETTINGS)}")
    socket = paths.chosen_socket()
    try:
        with Controls(socket) as controls:
            if key is None or value is None:
                found = controls.ask("settings")
            else:
                found = controls.ask("configure", name=key, value=value, card=card)
            settings = msgspec.convert(found, ShareSettings)
    except NoDaemonError:
        # Nobody has to be told: the next daemon reads the file.
        file = paths.settings_file(system=False)
        try:
            settings = read_settings(file)
            if key is not None and value is not None:
                settings = changed(settings, key, value, card)
                write_settings(file, settings)
        except SettingError as error:
            raise UsageError(str(error)) from error
    except DaemonError as error:
        raise UsageError(str(error)) from error
    rows = msgspec.to_builtins(settings)
    shown = rows if key is None else {key: rows[key]}
    if json:
        print_json(shown)
    else:
        for each, found in shown.items():
            print(f"{each} = {_text(each, found)}" if key is None else _text(each, found))
    return 0


def _text(name: str, value: object) -> str:
    from vramkit.report.units import bytes_text

    if name == "quantum":
        return "adaptive" if value is None else f"{value:g} s"
    if name in ("limit", "host_limit", "reserve"):
        none = "default" if name == "reserve" else "none"
        return bytes_text(value) if isinstance(value, int) and value else none
    if isinstance(value, dict):
        each = (f"{card}: {bytes_text(size)}" for card, size in value.items())
        return ", ".join(each) or "total less the reserve"
    if name in ("oversubscription", "max_weight"):
        return f"{value:g}"
    if name in ("patience", "idle_exit"):
        return f"{value:g} s"
    return str(value) or "none"
