"""What a rank does in each scenario of ranks.py. Each returns what JSON can say of it."""

from __future__ import annotations

import hashlib
import json
import os
import re
import signal
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from weights.models import example, stack
from weights.test_training import Model as Adapted
from weights.test_training import gradients, same

import vramkit
import vramkit.driver
from vramkit.weights import team
from vramkit.weights.gather import SHARE, share_chunks

MIB = 1 << 20
SMALL = {"keep_below": 4096, "ring": 2 * MIB}


def world() -> Any:
    return dist.group.WORLD


def offloaded(model: Any, budget: Any = "3.4MiB", **settings: Any) -> Any:
    return vramkit.offload(model, budget, group=world(), **{**SMALL, **settings})


def simulator() -> Any:
    sim = vramkit.driver.open("sim").sim
    assert sim is not None
    return sim


def digest(value: Any) -> str:
    return hashlib.sha256(value.contiguous().view(torch.uint8).numpy().tobytes()).hexdigest()


def weights_of(model: Any) -> dict[str, Any]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def equal(one: dict[str, Any], other: dict[str, Any]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


def mapping_of(address: int) -> dict[str, int]:
    """Of the memory at an address: its inode, and the part of it that counts for this process."""
    found: dict[str, int] = {}
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if head := re.match(r"([0-9a-f]+)-([0-9a-f]+) \S+ \S+ \S+ (\d+)", line):
            begin, end, inode = int(head[1], 16), int(head[2], 16), int(head[3])
            inside = begin <= address < end
            if inside:
                found["inode"], found["nbytes"] = inode, end - begin
        elif inside and (size := re.match(r"(Rss|Pss): +(\d+) kB", line)):
            found[size[1]] = 1024 * int(size[2])
    return found


def left_behind() -> dict[str, Any]:
    """Nothing, after a scenario that has closed everything."""
    live = simulator().live_objects()
    kept = {"contexts", "modules"}
    return {
        "reports": [str(report) for report in simulator().reports()],
        "live": {kind: n for kind, n in live.items() if n and kind not in kept},
    }


def expected_bytes(layout: Any, rank: int, size: int) -> int:
    """Of a pass, over this rank's link."""
    return sum(
        chunk.stored
        for group, resident in zip(layout.groups, layout.resident, strict=True)
        if not resident
        for chunk in share_chunks(group.nbytes, rank, size, SHARE)
    )


# Scenarios


def infer(rank: int, size: int, folder: str, family: str, budget: str) -> Any:
    made = example(family)
    before = weights_of(made.model)
    with torch.no_grad():
        alone = made.model(**made.inputs).logits
        written = made.model.generate(**generated(made), max_new_tokens=3)
        with offloaded(made.model, budget) as o:
            logits = [made.model(**made.inputs).logits for _ in range(3)]
            start = o.stats()
            last = made.model(**made.inputs).logits
            steady = o.stats()
            again = made.model.generate(**generated(made), max_new_tokens=3)
            layout = o.manager.layout
            address = o._store.addresses[0]
            dist.barrier()  # all have read and written it
            memory = mapping_of(address)
            dist.barrier()  # all have looked
            answer = {
                "same": [torch.equal(alone, each) for each in (*logits, last)],
                "generated": torch.equal(written, again),
                "digest": digest(last),
                "pass_bytes": steady.copied_bytes - start.copied_bytes,
                "pass_copies": steady.copies - start.copies,
                "misses": steady.misses - start.misses,
                "expected": expected_bytes(layout, rank, size),
                "streamed": layout.streamed_bytes,
                "groups": sum(not each for each in layout.resident),
                "staging": o.manager.staging_bytes,
                "sent": o.manager.sent_bytes,
                "host_bytes": o._store.nbytes,
                "memory": memory,
                "report": str(o.report()),
            }
            if rank == 0 and size > 1:
                seconds = [1e-4] * len(layout.groups)
                planned = o.predict(seconds=seconds, gather_bytes_per_s=1e11)
                answer["planned"] = [planned.ranks, planned.sent_bytes]
    answer["restored"] = equal(before, weights_of(made.model))
    return answer | left_behind()


def generated(made: Any) -> dict[str, Any]:
    """Inputs of generate()."""
    return {key: value for key, value in made.inputs.items() if key != "decoder_input_ids"}


def train(rank: int, size: int, folder: str, checkpoint: str) -> Any:
    """An adapter step: weights are streamed in forward and in backward."""
    model = Adapted(checkpoint)
    x = torch.randn(3, 200, generator=torch.Generator().manual_seed(1))
    expected = gradients(model, x)
    model.zero_grad()
    with offloaded(model, "4.2MiB") as o:
        found = [gradients(model, x) for _ in range(3)]
        start = o.stats()
        found.append(gradients(model, x))
        steady = o.stats()
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
        optimizer.step()
        stepped = gradients(model, x)
        layout = o.manager.layout
    alone = gradients(model, x)
    return {
        "same": [same(expected, each) for each in found],
        "stepped": same(alone, stepped) and not same(expected, stepped),
        "pass_bytes": steady.copied_bytes - start.copied_bytes,
        "streamed": layout.streamed_bytes,
    } | left_behind()


def fail_in_pass(rank: int, size: int, folder: str, how: str, again: bool = True) -> Any:
    """Rank 1 fails in the middle of its third pass. Returns what the others met, then, and where
    they offload the model `again`."""
    model = stack(*[300] * 9)
    before = weights_of(model)
    x = torch.ones(2, 300)
    passes = 0

    def fail(*_: Any) -> None:
        if rank != 1 or passes < 2:
            return
        if how == "killed":
            os.kill(os.getpid(), signal.SIGKILL)
        if how == "copy":  # alone, a model would go on after a prefetch that failed
            simulator().inject("cuMemcpyHtoDAsync*", nth=1, code=999)
        else:
            raise {"error": ValueError, "interrupt": KeyboardInterrupt}[how]("no more")

    hook = model[4].register_forward_pre_hook(fail)
    met: list[str] = []
    with torch.no_grad():
        try:
            with offloaded(model) as o:
                for _ in range(9):
                    model(x)
                    passes += 1
        except (RuntimeError, ValueError, KeyboardInterrupt, vramkit.driver.DriverError) as error:
            met = [type(error).__name__, str(error)]
        simulator().clear_faults()
        hook.remove()
        second = ""
        try:
            if again:
                offloaded(model).close()
        except team.RankError as error:
            second = str(error)
    return {
        "met": met,
        "passes": passes,
        "closed": o.closed,
        "restored": equal(before, weights_of(model)),
        "again": second,
    } | left_behind()


def leave_early(rank: int, size: int, folder: str) -> Any:
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)
    met = ""
    with torch.no_grad(), offloaded(model) as o:
        model(x)
        if rank == 0:
            o.close()
            o.close()
        try:
            while rank:
                model(x)
        except team.RankError as error:
            met = str(error)
    return {"met": met} | left_behind()


def fail_while_weights_move(rank: int, size: int, folder: str, at: str) -> Any:
    """On rank 1: while it fills its groups, or when all are there and it pins them."""
    model = stack(*[300] * 9)
    before = weights_of(model)
    x = torch.ones(2, 300)
    settings: dict[str, Any] = {}

    def fail(done: int, total: int) -> None:
        raise ValueError("no more")

    met: list[str] = []
    with torch.no_grad():
        alone = model(x)
        if rank == 1 and at == "filling":
            settings["progress"] = fail
        elif rank == 1:
            simulator().inject("cuMemHostRegister*", nth=1, code=999)
        try:
            offloaded(model, **settings)
        except (RuntimeError, ValueError, vramkit.driver.DriverError) as error:
            met = [type(error).__name__, str(error)]
        simulator().clear_faults()
        whole = equal(before, weights_of(model))
        with offloaded(model):
            found = torch.equal(alone, model(x))
        dist.barrier()
        if rank == 0:
            model[0].weight.fill_(1)
            model[1].weight.fill_(1)
        dist.barrier()
        mine = {name: t for name, t in before.items() if rank or not name.startswith(("0", "1"))}
        apart = all(torch.equal(model.state_dict()[name], mine[name]) for name in mine)
    return {"met": met, "whole": whole, "again": found, "apart": apart} | left_behind()


def interrupted_wait(rank: int, size: int, folder: str) -> Any:
    """Rank 1 is late; rank 0, which waits for it, is interrupted meanwhile."""
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)
    with torch.no_grad():
        try:
            with offloaded(model):
                model(x)
                if rank == 0:
                    signal.setitimer(signal.ITIMER_REAL, 0.3)
                    signal.signal(signal.SIGALRM, signal.default_int_handler)
                else:
                    time.sleep(1)
                model(x)
        except (KeyboardInterrupt, team.RankError) as error:
            return {"met": [type(error).__name__, str(error)]} | left_behind()
    return {"met": []}


def many_times(rank: int, size: int, folder: str, times: int) -> Any:
    """Opened and closed again and again: no rank loses what another one has sent."""
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)
    with torch.no_grad():
        alone = model(x)
        answers = []
        for turn in range(times):
            if turn % size == rank:
                time.sleep(0.02)  # each is late in its turn
            with offloaded(model):
                answers.append(torch.equal(alone, model(x)))
    return {"same": answers} | left_behind()


def differ(rank: int, size: int, folder: str, what: str) -> Any:
    """The last rank differs in something."""
    other = rank == size - 1
    settings: dict[str, Any] = {}
    model = stack(*[300] * 9)
    budget: Any = "3.4MiB"
    if what == "budget":
        budget = "3.5MiB" if other else budget
    elif what == "policy":
        settings["policy"] = "stage1" if other else "auto"
    elif what == "ring":
        settings["ring"] = (1 if other else 2) * MIB
    elif what == "layers":
        model = stack(*[300] * (10 if other else 9))
    elif what == "names":
        model = torch.nn.ModuleDict({"b" if other else "a": model})
        model.forward = model["b" if other else "a"].forward
    elif what == "packing":
        settings |= {"packing": "bf16-12"} if other else {}
    before = weights_of(model)
    try:
        with offloaded(model, budget, **settings):
            pass
    except Exception as error:
        return {
            "met": [type(error).__name__, str(error)],
            "untouched": equal(before, weights_of(model)),
        } | left_behind()
    return {"met": []}


def other_order(rank: int, size: int, folder: str) -> Any:
    """One rank calls the parts of the model in another order."""
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)
    order = list(range(8))
    with torch.no_grad():
        try:
            with offloaded(model):
                model(x)
                for number in reversed(order) if rank else order:
                    x = model[number](x)
        except team.RankError as error:
            return {"met": str(error)} | left_behind()
    return {"met": ""}


def split(rank: int, size: int, folder: str, how: str) -> Any:
    """The model is split between the ranks already."""
    torch.manual_seed(rank)
    widths = [256, 256 + (64 * rank if how == "unequal" else 0)] * 8
    model = torch.nn.Sequential(*[torch.nn.Linear(a, b) for a, b in pairwise(widths)])
    x = torch.ones(2, 256)
    with torch.no_grad():
        alone = model(x)
        with offloaded(model, "3.2MiB") as o:
            model(x)
            start = o.stats().copied_bytes
            # Passes need not be equally many.
            found = [model(x) for _ in range(1 + rank)]
            passes = (o.stats().copied_bytes - start) / len(found)
            layout = o.manager.layout
            report = str(o.report())
    return {
        "same": all(torch.equal(alone, each) for each in found),
        "pass_bytes": passes,
        "streamed": layout.streamed_bytes,
        "report": report,
    } | left_behind()


def parallel(rank: int, size: int, folder: str) -> Any:
    """A tensor-parallel model: its parameters are DTensors."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import (
        ColwiseParallel,
        RowwiseParallel,
        parallelize_module,
    )

    torch.manual_seed(0)
    pairs = [
        torch.nn.Sequential(torch.nn.Linear(256, 1024), torch.nn.GELU(), torch.nn.Linear(1024, 256))
        for _ in range(6)
    ]
    model = torch.nn.Sequential(*pairs)
    x = torch.randn(2, 256)
    with torch.no_grad():
        undivided = model(x)
        mesh = init_device_mesh("cpu", (size,))
        for pair in model:
            parallelize_module(pair, mesh, {"0": ColwiseParallel(), "2": RowwiseParallel()})
        alone = model(x)
        before = weights_of_parts(model)
        with offloaded(model) as o:
            model(x)
            start = o.stats().copied_bytes
            found = [model(x) for _ in range(3)]
            each = (o.stats().copied_bytes - start) / 3
            report = str(o.report())
            streamed = o.manager.layout.streamed_bytes
            with torch.enable_grad():
                met = message_of(lambda: model(x))
            model[1][0].weight.mul_(2)
            twice = model(x)
        model[1][0].weight.mul_(0.5)
    return {
        "same": [torch.equal(alone, each) for each in found],
        "close": torch.allclose(undivided, alone, atol=1e-5),
        "written": not torch.equal(alone, twice),
        "restored": equal(before, weights_of_parts(model)),
        "pass_bytes": each,
        "streamed": streamed,
        "whole": sum(p.numel() * 4 for p in model.parameters()),
        "met": met,
        "report": report,
    } | left_behind()


def weights_of_parts(model: Any) -> dict[str, Any]:
    return {name: tensor.to_local().clone() for name, tensor in model.named_parameters()}


def message_of(call: Any) -> str:
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def nodes(rank: int, size: int, folder: str, source: str) -> Any:
    """Two nodes, as far as vramkit can tell."""
    here = team.this_member()
    team.this_member = lambda: here._replace(node=f"node {rank // 2}")
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)
    settings: dict[str, Any] = {}
    with torch.no_grad():
        alone = model(x)
        if source:
            own = Path(folder) / f"node {rank // 2}"
            if rank % 2 == 0:
                own.mkdir()
                if source == "other" and rank:
                    model[4].bias[7] += 1
                save(model, own)
            dist.barrier()
            with torch.device("meta"):
                model = stack(*[300] * 9)
            settings["source"] = own / "model.safetensors"
        with offloaded(model, **settings) as o:
            found = [model(x) for _ in range(2)]
            memory = mapping_of(o._store.addresses[0])
    return {
        "same": [torch.equal(alone, each) for each in found],
        "after": torch.equal(alone, model(x)),
        "inode": memory["inode"],
    } | left_behind()


def save(model: Any, folder: Path) -> None:
    """As a safetensors checkpoint."""
    header, data = {}, b""
    for name, tensor in model.state_dict().items():
        raw = tensor.contiguous().numpy().tobytes()
        header[name] = {
            "dtype": "F32",
            "shape": list(tensor.shape),
            "data_offsets": [len(data), len(data) + len(raw)],
        }
        data += raw
    text = json.dumps(header).encode()
    file = folder / "model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text + data)


def write(rank: int, size: int, folder: str) -> Any:
    """Weights are written: while they are offloaded, on the card, and afterwards."""
    model = stack(*[300] * 24)
    x = torch.ones(2, 300)
    with torch.no_grad():
        o = offloaded(model, "6.4MiB")
        model(x)
        resident = next(g for g in o._groups if g.resident)
        weight = resident.weights[0].tensor
        weight.mul_(2 + rank)  # on its card alone
        twice = weight.clone()
        dist.barrier()
        streamed = next(g for g in o._groups if not g.resident).weights[0].tensor
        streamed.mul_(1)  # nobody may: it is the memory of all
        met = ""
        try:
            model(x)
        except RuntimeError as error:
            met = str(error)
        o.close()
        kept = torch.equal(weight, twice)
        before = streamed.clone()
        dist.barrier()
        if rank == 0:
            streamed.fill_(3)
        dist.barrier()
        mine = torch.equal(streamed, torch.full_like(streamed, 3))
        others = torch.equal(streamed, before)
        return {"met": met, "kept": kept, "private": mine if rank == 0 else others} | left_behind()


def beside(rank: int, size: int, folder: str) -> Any:
    """Collectives of the program on the same group, in the model itself."""
    model = stack(*[300] * 9)
    x = torch.ones(2, 300)

    def reduce(module: Any, arguments: Any, result: Any) -> Any:
        dist.all_reduce(result)
        return result / size

    for layer in model:
        layer.register_forward_hook(reduce)
    with torch.no_grad():
        alone = model(x)
        with offloaded(model):
            found = [model(x) for _ in range(3)]
    return {"same": [torch.equal(alone, each) for each in found]} | left_behind()
