"""What offload() refuses, and failures on the way: the model stays as it was."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from vramkit import offload
from vramkit.driver import DriverError
from vramkit.weights import BudgetError, UnsupportedModel

from .models import example, stack, torch
from .offloads import MIB, assert_same, picture, small

if TYPE_CHECKING:
    from vramkit.driver import Driver

# The simulated GPU's memory serves PyTorch's CPU build only.
pytestmark = [pytest.mark.sim_only, pytest.mark.usefixtures("inference")]


def test_bad_budgets(driver: Driver) -> None:
    model = stack(400, 400, 400, 400)
    data = [tensor.data_ptr() for tensor in model.parameters()]
    for budget, error, text in [
        ("much", ValueError, r"budget is 'much'; it may be bytes, or text such as"),
        ("24 GiB of it", ValueError, "budget is"),
        ("0%", ValueError, "a percentage may be more than 0, up to 100"),
        ("101%", ValueError, "a percentage"),
        (1.5, TypeError, r"budget is 1.5; it may be bytes"),
        (None, TypeError, "budget is None"),
        (0, ValueError, "budget is 0"),
        ("64KiB", BudgetError, r"budget is 64.0 KiB|budget is 64 KiB"),
        (1 * MIB, BudgetError, r"too little for these weights:\n  at least: a ring of the largest"),
    ]:
        with pytest.raises(error, match=text):
            offload(model, budget, keep_below=4096)
    assert data == [tensor.data_ptr() for tensor in model.parameters()]


def test_models_that_cannot_be_streamed(driver: Driver) -> None:
    with pytest.raises(TypeError, match=r"model is a int; it may be a torch.nn.Module"):
        offload(3, "1GiB")
    with pytest.raises(ValueError, match="the ReLU has no parameters"):
        offload(torch.nn.ReLU(), "1GiB")
    with pytest.raises(ValueError, match="nothing is worth streaming"):
        offload(stack(4, 4, 4), "1GiB")
    with torch.device("meta"):
        empty = torch.nn.Linear(1000, 1000)
    with pytest.raises(UnsupportedModel, match="weight is on the meta device"):
        offload(empty, "1GiB")
    shared = stack(1000, 1000, 1000)
    shared[1].weight = torch.nn.Parameter(shared[0].weight.detach()[:, :])
    with pytest.raises(UnsupportedModel, match=r"0.weight and 1.weight share memory"):
        offload(shared, "1GiB")
    gaps = stack(1000, 1000)
    gaps[0].weight = torch.nn.Parameter(torch.zeros(1000, 2000)[:, ::2])
    with pytest.raises(UnsupportedModel, match=r"0.weight has gaps or overlaps"):
        offload(gaps, "1GiB")

    class Wrapped(torch.Tensor):  # type: ignore[misc,name-defined]
        pass

    special = stack(1000, 1000)
    special[0].weight = torch.nn.Parameter(torch.zeros(1000, 1000).as_subclass(Wrapped))
    with pytest.raises(UnsupportedModel, match=r"0.weight is a Wrapped"):
        offload(special, "1GiB")


def test_a_model_is_offloaded_once(driver: Driver) -> None:
    model = stack(*[400] * 6)
    with small(model, "3MiB") as o:
        for each in (model, torch.nn.Sequential(torch.nn.Identity(), model)):
            with pytest.raises(ValueError, match="is offloaded already; close that Offload first"):
                small(each, "3MiB")
        assert not o.closed
    assert o.closed
    o.close()
    with small(model, "3MiB"):
        pass


def test_bad_devices(driver: Driver) -> None:
    with pytest.raises(TypeError, match="device is 'cuda'; it may be None, a number, or a Device"):
        offload(stack(400, 400), "1GiB", device="cuda")  # type: ignore[arg-type]


def test_a_copy_that_fails_is_an_error_of_forward_and_the_next_works(driver: Driver) -> None:
    assert driver.sim is not None
    model, inputs, _ = example("llama")
    expected = model(**inputs).logits
    with small(model):
        model(**inputs)
        driver.sim.inject("cuMemcpyHtoDAsync*", nth=3, times=None, code=999)
        with pytest.raises(DriverError, match="cuMemcpyHtoDAsync"):
            model(**inputs)
        driver.sim.clear_faults()
        for _ in range(2):
            assert torch.equal(model(**inputs).logits, expected)


@pytest.mark.parametrize("call", ["cuMemHostRegister*", "cuMemCreate", "cuMemMap", "cuEventCreate"])
def test_a_failure_on_the_way_leaves_the_model_as_it_was(driver: Driver, call: str) -> None:
    assert driver.sim is not None
    model, inputs, _ = example("llama")
    expected, before = model(**inputs).logits, picture(model)
    driver.sim.inject(call, code=2)
    with pytest.raises(DriverError):
        small(model)
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs).logits, expected)
    with small(model):
        assert torch.equal(model(**inputs).logits, expected)


def test_an_interrupt_while_weights_are_laid_out(driver: Driver) -> None:
    model, inputs, _ = example("llama")
    expected, before = model(**inputs).logits, picture(model)
    seen: list[tuple[int, int]] = []

    def progress(done: int, total: int) -> None:
        seen.append((done, total))
        if len(seen) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        small(model, progress=progress)
    assert_same(before, picture(model))
    assert torch.equal(model(**inputs).logits, expected)
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)


def test_host_memory_never_holds_the_weights_twice(driver: Driver) -> None:
    """The simulated card's memory is host memory too: only what comes before it is looked at."""
    torch.empty(30 * MIB, dtype=torch.uint8)  # freed: glibc now keeps what is smaller
    model = stack(*[1500] * 17)
    weights = sum(tensor.nbytes for tensor in model.parameters())
    assert weights > 128 * MIB
    resident: list[int] = []

    def note(done: int = 0, total: int = 0) -> None:
        status = Path("/proc/self/status").read_text("utf-8")
        resident.append(int(status.partition("VmRSS:")[2].split()[0]) << 10)

    note()
    with offload(model, "40MiB", progress=note):
        pass
    most = max(resident[1:-1]) - resident[0]
    assert most < 0.25 * weights  # one layer is a sixteenth


def test_a_second_offload_uses_the_memory_of_the_first(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = stack(*[400] * 8)
    x = torch.randn(2, 400)
    expected = model(x)
    with small(model, "3MiB"):
        pass
    data = [tensor.data_ptr() for tensor in model.parameters()]
    needed: list[int] = []
    monkeypatch.setattr("vramkit.weights.slab.require", lambda nbytes, what: needed.append(nbytes))
    with small(model, "3.5MiB"):
        assert torch.equal(model(x), expected)
    assert data == [tensor.data_ptr() for tensor in model.parameters()]
    assert not needed
    # Other groups: the old memory goes as a whole, so there must be room for both.
    with small(model, "3MiB", keep_below=1):
        assert torch.equal(model(x), expected)
    with small(model[:5], "3MiB"):
        assert torch.equal(model(x), expected)
    assert needed[-1] > 5 * 400 * 400 * 4
    assert torch.equal(model(x), expected)


def test_too_little_host_memory_is_said_before_anything_moves(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(nbytes: int, what: str) -> None:
        raise MemoryError(f"no room for {what}")

    monkeypatch.setattr("vramkit.weights.slab.require", refuse)
    model = stack(*[400] * 6)
    data = [tensor.data_ptr() for tensor in model.parameters()]
    with pytest.raises(MemoryError, match="no room for a slab of"):
        small(model, "3MiB")
    assert data == [tensor.data_ptr() for tensor in model.parameters()]


@pytest.mark.parametrize(
    "given", [{"ring": 2 * MIB}, {"policy": "history"}, {"packing": "bf16-12"}], ids=str
)
def test_a_setting_without_effect_is_an_error(driver: Driver, given: dict[str, Any]) -> None:
    model = example("llama").model
    before = picture(model)
    (name,) = given
    with pytest.raises(ValueError, match=f"{name} has no effect: all weights fit into the budget"):
        offload(model, "1GiB", keep_below=4096, **given)
    assert_same(before, picture(model))
