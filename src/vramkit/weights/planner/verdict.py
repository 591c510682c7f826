"""What limits a planned pass, and what would help, in one line."""

from __future__ import annotations

from vramkit.report.units import bytes_text, percent_text, rate_text, time_text
from vramkit.weights.planner.predict import Engine
from vramkit.weights.planner.result import Prediction

MORE = 4 << 30
"""The further memory whose worth is stated."""
NEAR = 1.02
"""A pass that takes up to this part of its bound is explained by it."""


def verdict(engine: Engine, chosen: Prediction) -> str:
    if not chosen.streamed_bytes:
        return f"all weights are resident: a pass takes {time_text(chosen.pass_s)} of compute"
    over = f"{chosen.pass_s / chosen.bound_s:.3f} of the bound"
    rate = chosen.sent_bytes / chosen.pass_s
    full = engine.settings.host_to_device_bytes_per_s
    if chosen.pass_s > NEAR * chosen.bound_s:
        text = f"{over}: the card waits, and the link moves {rate_text(rate)} of {rate_text(full)}"
    elif chosen.limit == "compute":
        return f"compute-bound: {over}; the weights arrive in time"
    elif chosen.limit == "gather":
        assert engine.request.gather_bytes_per_s is not None
        gathered = (chosen.streamed_bytes - chosen.sent_bytes) / chosen.pass_s
        given = rate_text(engine.request.gather_bytes_per_s)
        text = f"gather-bound: {rate_text(gathered)} of {given} from the other cards"
    else:
        text = f"link-bound: {rate_text(rate)} of {rate_text(full)}"
    if chosen.budget + MORE > engine.memory:
        return text
    more = engine.run(chosen.budget + MORE, ring=engine.request.ring)
    saved = 1 - more.pass_s / chosen.pass_s
    return f"{text}; {bytes_text(MORE)} more would save {percent_text(saved)}"
