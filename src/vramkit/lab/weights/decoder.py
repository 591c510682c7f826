"""A decoder of PyTorch on a real card: offload() with each policy, and what else does the same.

Every process measures the resident model too: its result is what the others must give, and its time
a part of their bound.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from vramkit.lab.experiment import Lab, Setting, Unmeasured
from vramkit.lab.result import Quantity
from vramkit.lab.weights.cases import Budget, DecoderCase
from vramkit.lab.weights.peers import PEERS
from vramkit.lab.weights.study import RINGS

if TYPE_CHECKING:
    from vramkit.driver import Driver
    from vramkit.weights import Offload

TOKENS = {"token": 1, "prefill": 4096}
WARM_UP = 2
PASSES = 3
SLACK = 8 << 20
"""Bytes of a budget beside whole layers: small weights, and the padding of groups."""

QUANTITIES = {
    "token": Quantity("a pass of one token", "ms"),
    "token_over_bound": Quantity("... over the bound", "ratio"),
    "prefill": Quantity(f"a prefill of {TOKENS['prefill']} tokens", "ms"),
    "prefill_over_bound": Quantity("... over the bound", "ratio"),
    "equal": Quantity("results that are those of the resident model", "count", "higher"),
}
SETTINGS = (
    Setting("hidden", 4096, "width of the decoder on a card; 8192 is Llama-70B's", 256, 16384),
    Setting("decoder_layers", 12, "layers of the decoder on a card", 2, 200),
)


def missing(driver: Driver) -> dict[str, str]:
    """The subjects beside ours: why they cannot take part."""
    return {name: _missing(driver, name) for name in ("resident", *PEERS)}


def _missing(driver: Driver, name: str) -> str:
    if driver.simulated:
        return "needs a real card, and PyTorch"
    needed = ["torch", "transformers", *([name] if name in PEERS else [])]
    lacking = [each for each in needed if find_spec(each) is None]
    return f"{', '.join(lacking)} not installed" if lacking else ""


def measure(case: DecoderCase, subject: str, lab: Lab) -> dict[str, float]:
    why = _missing(lab.driver, subject)
    if why:
        raise Unmeasured(why)
    if (subject == "resident" or subject in PEERS) and case.budget != "least memory":
        raise Unmeasured("has no budget to set")
    from vramkit.integrations._frameworks import imported
    from vramkit.lab.weights.models import inputs, llama, with_values

    torch = imported("torch", "torch")
    if not torch.cuda.is_available():
        raise Unmeasured("PyTorch sees no card; is it built for CUDA?")
    hidden, layers = int(str(lab.settings["hidden"])), int(str(lab.settings["decoder_layers"]))
    with torch.no_grad():
        model = with_values(llama(hidden, layers), "cuda")
        given = {name: inputs(tokens, hidden, "cuda") for name, tokens in TOKENS.items()}
        return Decoder(torch, model, given, "cuda").measure(case.budget, subject, lab)


class Decoder:
    """A model and its inputs. `where` they compute: "cpu" is a trial of this code, without times
    that say anything."""

    def __init__(
        self, torch: Any, model: Any, given: Mapping[str, Mapping[str, Any]], where: str
    ) -> None:
        self.torch, self.model, self.given, self.where = torch, model, given, where
        self.nbytes: int = sum(tensor.nbytes for tensor in model.parameters())
        self.layer = self.nbytes // model.config.num_hidden_layers
        self.resident: dict[str, Any] = {}
        """Results."""

    def measure(self, budget: Budget, subject: str, lab: Lab) -> dict[str, float]:
        compute = self._on_the_card()
        if subject == "resident":
            return self._values(compute, compute, dict.fromkeys(self.given, True), 0.0)
        if subject in PEERS:
            with PEERS[subject](self.model):
                times, equal = self._passes()
            return self._values(times, compute, equal, self.nbytes / self._link(lab))
        times, equal, streamed = self._offloaded(budget, subject, lab)
        if not all(equal.values()):
            raise RuntimeError("the results differ from those of the resident model")
        return self._values(times, compute, equal, streamed / self._link(lab))

    def _on_the_card(self) -> dict[str, float]:
        """Seconds with all weights on the card, which go back to the host."""
        model = self.model
        host = {name: tensor.data for name, tensor in model.named_parameters()}
        model.to(self.where)
        for name, given in self.given.items():
            self.resident[name] = model(**given).last_hidden_state.clone()
        times, _ = self._passes()
        for name, tensor in model.named_parameters():
            tensor.data = host[name]
        model.rotary_emb.to("cpu")
        self.torch.cuda.empty_cache()
        return times

    def _offloaded(
        self, budget: Budget, subject: str, lab: Lab
    ) -> tuple[dict[str, float], dict[str, bool], int]:
        with self._offload(budget, subject, lab) as o:
            times, equal = self._passes()
            return times, equal, o.manager.layout.streamed_bytes

    def _offload(self, budget: Budget, subject: str, lab: Lab) -> Offload:
        """With the least memory: of as many layers as the policy needs, or the next number with
        which a pass fills its ring a whole number of times."""
        import vramkit
        from vramkit.weights import POLICIES

        policy = "auto" if subject in RINGS else subject
        depth = POLICIES[policy].depth
        least = RINGS.get(subject, 2) if depth is None else depth + 1
        why = ""
        for layers in range(least, self.model.config.num_hidden_layers):
            ring = layers * self.layer + SLACK
            nbytes = ring if budget == "least memory" else self.nbytes // 2
            settings = {"ring": ring} if depth is None else {}
            try:
                return vramkit.offload(
                    self.model, nbytes, device=lab.device, policy=policy, **settings
                )
            except ValueError as error:  # too little for the policy, or enough for all weights
                why = str(error).partition("\n")[0]
        raise Unmeasured(why)

    def _passes(self) -> tuple[dict[str, float], dict[str, bool]]:
        """Seconds of a pass, and whether its result is that of the resident model."""
        times, equal = {}, {}
        for name, given in self.given.items():
            times[name] = self._seconds(lambda given=given: self.model(**given))  # type: ignore[misc]
            result = self.model(**given).last_hidden_state
            equal[name] = bool(self.torch.equal(result.to(self.where), self.resident[name]))
        return times, equal

    def _seconds(self, run: Callable[[], object]) -> float:
        values = []
        for number in range(WARM_UP + PASSES):
            self._synchronize()
            start = time.perf_counter()
            run()
            self._synchronize()
            if number >= WARM_UP:
                values.append(time.perf_counter() - start)
        return statistics.median(values)

    def _synchronize(self) -> None:
        """With what was issued to PyTorch's stream, not with copies for the next pass."""
        if self.where == "cuda":
            self.torch.cuda.current_stream().synchronize()

    def _link(self, lab: Lab) -> float:
        from vramkit.lab.weights.link import link_rate

        return link_rate(lab.device)

    @staticmethod
    def _values(
        times: Mapping[str, float],
        compute: Mapping[str, float],
        equal: Mapping[str, bool],
        link_seconds: float,
    ) -> dict[str, float]:
        values: dict[str, float] = {"equal": sum(equal.values())}
        for name, seconds in times.items():
            values[name] = seconds * 1e3
            values[f"{name}_over_bound"] = seconds / max(compute[name], link_seconds)
        return values
