"""Weights larger than the card: vramkit beside resident weights, accelerate and diffusers.

One process, the same model and inputs for all. Needs a card with room for the model once.
"""

import statistics
import sys
import time
import traceback
from argparse import ArgumentParser, Namespace
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import machine
import msgspec
import programs
import torch
import weight_models
from peak_memory import PeakMemory
from rows import Row
from weight_models import MIB, TOKENS

import vramkit
from vramkit.lab.weights.link import link_rate
from vramkit.lab.weights.peers import PEERS
from vramkit.weights import Group, WeightManager
from vramkit.weights.passes import run_passes

DEFAULT_OUTPUT = programs.RESULTS / "weight_streaming_h200.json"
ENGINE_LAYER = 1_711_304_704
GIB = 1 << 30


class Result(msgspec.Struct):
    benchmark: str
    machine: machine.Machine
    packages: dict[str, str]
    model: str
    link_bytes_per_s: float
    rows: list[Row]


class Bench:
    def __init__(self, options: Namespace) -> None:
        self.options = options
        self.deadline = time.monotonic() + options.time_limit
        self.rows: list[Row] = []
        self.device = vramkit.driver.open(options.driver).device()
        self.torch_device = "cuda" if self.device.driver.sim is None else "cpu"
        self.link = link_rate(self.device)

    # Rows

    def row(self, workload: str, subject: str, measure: Callable[[Row], list[float]]) -> None:
        row = Row(workload, subject, "ms")
        self.rows.append(row)
        if time.monotonic() > self.deadline:
            row.error = "not started: the time limit was reached"
            return
        try:
            row.take(measure(row))
        except Exception as error:
            row.error = "".join(traceback.format_exception_only(error)).strip()
            traceback.print_exc()
        shown = "" if row.median is None else f"{row.median:.1f} ms"
        over = row.details.get("over_bound")
        tail = "" if over is None else f"  {over:.3f} of the bound"
        print(
            f"{workload:<28} {subject:<22} {shown:>12}{tail}  {row.outcome}{row.error}", flush=True
        )

    def passes(self, run: Callable[[], object], warm_up: int = 2) -> list[float]:
        for _ in range(warm_up):
            run()
        values = []
        for _ in range(self.options.repetitions):
            self.synchronize()
            start = time.perf_counter()
            run()
            self.synchronize()
            values.append((time.perf_counter() - start) * 1e3)
        return values

    def synchronize(self) -> None:
        """With what was issued to PyTorch's stream, not with copies for the next pass."""
        if self.torch_device == "cuda":
            torch.cuda.current_stream().synchronize()

    def judge(self, row: Row, values: list[float], compute_ms: float, streamed: int) -> list[float]:
        link_ms = streamed / self.link * 1e3
        row.details |= {
            "bound_ms": max(compute_ms, link_ms),
            "compute_ms": compute_ms,
            "link_ms": link_ms,
            "over_bound": statistics.median(values) / max(compute_ms, link_ms),
        }
        return values

    # The engine alone: spinning kernels in the place of layers

    def engine(self) -> None:
        nbytes = ENGINE_LAYER // 512 * 512
        for parts in ({"all": 1.0}, {"attn": 0.176, "ffn": 0.824}):
            for streamed in (12, 11, 7, 5):
                for name, compute_ms in (("one token", 9.7), ("prefill 4096", 144.7)):
                    workload = f"engine, {len(parts)} a layer, {streamed} of 12, {name}"
                    self.row(workload, "vramkit", self._engine(nbytes, parts, streamed, compute_ms))

    def _engine(
        self, nbytes: int, parts: dict[str, float], streamed: int, compute_ms: float
    ) -> Callable[[Row], list[float]]:
        def measure(row: Row) -> list[float]:
            groups = [
                Group(layer, part, int(nbytes * share) // 512 * 512)
                for layer in range(12)
                for part, share in parts.items()
            ]
            ring = 2 * nbytes + 2 * MIB
            budget = ring + (12 - streamed) * nbytes + 4 * MIB
            with self.device.alloc_pinned(nbytes) as host:
                sources = [host.address] * len(groups)
                with WeightManager(
                    self.device, groups, sources, budget=budget, ring=ring
                ) as manager:
                    seconds = [
                        compute_ms / 12e3 * share for _ in range(12) for share in parts.values()
                    ]
                    times = run_passes(manager, seconds, passes=2 + self.options.repetitions)
                    row.details["ring_layers"] = manager.layout.ring_bytes / nbytes
                    values = [each.wall * 1e3 for each in times[2:]]
                    return self.judge(row, values, compute_ms, manager.layout.streamed_bytes)

        return measure

    # Models

    def models(self) -> None:
        hidden = self.options.hidden
        model = weight_models.build(hidden, device=self.torch_device)
        nbytes = sum(tensor.nbytes for tensor in model.parameters())
        arguments = {
            name: weight_models.inputs(tokens, hidden, device=self.torch_device)
            for name, tokens in TOKENS.items()
        }
        resident, compute = self.resident(model, arguments)
        self.offloaded(model, arguments, resident, compute, nbytes)
        for name, peer in PEERS.items():
            if self.options.peer in (None, name):
                self.peer(model, arguments, resident, name, peer)

    def resident(
        self, model: Any, arguments: dict[str, Any], prefix: str = ""
    ) -> tuple[dict[str, Any], dict[str, float]]:
        results, compute = {}, {}
        host = {name: tensor.data for name, tensor in model.named_parameters()}
        model.to(self.torch_device)
        for name, given in arguments.items():
            results[name] = model(**given).last_hidden_state.clone()

            def run(row: Row, given: Any = given) -> list[float]:
                return self.passes(lambda: model(**given))

            self.row(f"{prefix}{name}", "resident", run)
            compute[name] = self.rows[-1].median or 0.0
        for name, tensor in model.named_parameters():
            tensor.data = host[name]
        model.rotary_emb.to("cpu")
        torch.cuda.empty_cache()
        return results, compute

    def offloaded(
        self,
        model: Any,
        arguments: dict[str, Any],
        resident: dict[str, Any],
        compute: dict[str, float],
        nbytes: int,
    ) -> None:
        ring, budgets = weight_models.budgets(nbytes)
        budgets["packed, ring of 2 layers"] = ring + 256 * MIB
        if self.options.peer is not None:
            budgets = {title: budgets[title] for title in ("ring of 2 layers",)}
        for title, budget in budgets.items():
            packing = "bf16-12" if title.startswith("packed") else "off"
            settings = {"ring": ring, "packing": packing}
            self.offloaded_as(title, model, arguments, resident, compute, budget, settings)

    def offloaded_as(
        self,
        title: str,
        model: Any,
        arguments: dict[str, Any],
        resident: dict[str, Any],
        compute: dict[str, float],
        budget: int,
        settings: dict[str, Any],
    ) -> None:
        memory = PeakMemory()
        start = time.perf_counter()
        with vramkit.offload(model, budget, device=self.device, **settings) as o:
            ready = time.perf_counter() - start

            more = memory.more()

            def told(row: Row) -> list[float]:
                if more is not None:
                    row.details["host_gib_more"] = more / GIB
                return [ready * 1e3]

            self.row(f"ready, {title}", "vramkit", told)
            for name, given in arguments.items():

                def run(row: Row, name: str = name, given: Any = given) -> list[float]:
                    values = self.passes(lambda: model(**given))
                    same = torch.equal(model(**given).last_hidden_state, resident[name])
                    row.outcome = "equal" if same else "DIFFERS"
                    layout = o.manager.layout
                    row.details["device_bytes"] = layout.device_bytes
                    row.details["sent_bytes"] = o.manager.sent_bytes
                    return self.judge(row, values, compute[name], layout.streamed_bytes)

                self.row(f"{title}, {name}", "vramkit", run)
            print(o.report(), flush=True)

    # A mixture of experts

    def mixture(self) -> None:
        hidden = self.options.hidden // 2
        model = weight_models.build_mixture(hidden, device=self.torch_device)
        nbytes = sum(tensor.nbytes for tensor in model.parameters())
        layer = max(sum(t.nbytes for t in each.parameters()) for each in model.layers)
        arguments = {
            name: weight_models.inputs(tokens, hidden, device=self.torch_device)
            for name, tokens in list(TOKENS.items())[:2]
        }
        resident, compute = self.resident(model, arguments, "mixture, ")
        ring = 2 * layer + 8 * MIB
        self.offloaded_as(
            "mixture, ring of 2 layers", model, arguments, resident, compute, ring, {"ring": ring}
        )
        self.routed(model, hidden, nbytes, layer)

    def routed(self, model: Any, hidden: int, nbytes: int, layer: int) -> None:
        """Token after token, each with its own routing: the experts of half the model stay."""
        tokens = [
            weight_models.inputs(1, hidden, device=self.torch_device, seed=seed)
            for seed in range(2, 2 + 24)
        ]
        host = {name: tensor.data for name, tensor in model.named_parameters()}
        model.to(self.torch_device)
        expected = [model(**given).last_hidden_state.clone() for given in tokens]
        for name, tensor in model.named_parameters():
            tensor.data = host[name]
        model.rotary_emb.to("cpu")
        for title, experts in (("whole", "whole"), ("routed", "routed")):
            with vramkit.offload(model, nbytes // 2, device=self.device, experts=experts) as o:

                def run(row: Row, o: Any = o) -> list[float]:
                    values, same = [], True
                    for given, result in zip(tokens, expected, strict=True):
                        self.synchronize()
                        start = time.perf_counter()
                        found = model(**given).last_hidden_state
                        self.synchronize()
                        values.append((time.perf_counter() - start) * 1e3)
                        same = same and torch.equal(found, result)
                    row.outcome = "equal" if same else "DIFFERS"
                    if o.experts is not None:
                        row.details |= msgspec.structs.asdict(o.experts.stats())
                        row.details["slots"] = o.experts.slots
                    return values[8:]  # those before fill the slots

                self.row(f"mixture, half the model, tokens, experts {title}", "vramkit", run)
                print(o.report(), flush=True)

    def peer(
        self,
        model: Any,
        arguments: dict[str, Any],
        resident: dict[str, Any],
        name: str,
        peer: Callable[[Any], Any],
    ) -> None:
        if find_spec(name) is None:
            self.rows.append(Row("all", name, "ms", outcome="not installed"))
            return
        try:
            with peer(model):
                for title, given in arguments.items():

                    def run(row: Row, title: str = title, given: Any = given) -> list[float]:
                        values = self.passes(lambda: model(**given), warm_up=1)
                        same = torch.equal(
                            model(**given).last_hidden_state.to(self.torch_device),
                            resident[title],
                        )
                        row.outcome = "equal" if same else "differs"
                        return values

                    self.row(title, name, run)
        except Exception as error:
            self.rows.append(Row("all", name, "ms", error=f"{type(error).__name__}: {error}"))


def packages() -> dict[str, str]:
    found = {}
    for name in ("vramkit", "torch", "transformers", "accelerate", "diffusers"):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def main() -> int:
    parser = ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, default=DEFAULT_OUTPUT)
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument(
        "--time-limit", type=float, default=400, help="seconds; later rows are left out"
    )
    parser.add_argument("--only", choices=["engine", "models", "mixture"], help="a part of it")
    parser.add_argument(
        "--peer", choices=list(PEERS), help="of models, only this one beside a ring of two layers"
    )
    parser.add_argument("--driver", default="cuda", help="sim: a trial of this program, no times")
    parser.add_argument("--hidden", type=int, default=weight_models.HIDDEN, help="width of a layer")
    options = parser.parse_args()
    bench = Bench(options)
    with torch.no_grad():
        for part in (bench.engine, bench.models, bench.mixture):
            if options.only in (None, part.__name__):
                part()
    result = Result(
        "weight_streaming",
        machine.collect(),
        packages(),
        f"{weight_models.LAYERS} decoder layers of Llama-70B shape, bf16; mixture: 8 layers, every "
        "other one with 16 experts",
        bench.link,
        bench.rows,
    )
    options.json.parent.mkdir(parents=True, exist_ok=True)
    options.json.write_bytes(msgspec.json.format(msgspec.json.encode(result)))
    return 0 if not any(row.error or row.outcome == "DIFFERS" for row in bench.rows) else 1


if __name__ == "__main__":
    sys.exit(main())
