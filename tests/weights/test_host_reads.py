"""Models use no weights in host memory while they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from vramkit import offload

from .host_reads import HostReads
from .models import FAMILIES, example, torch

if TYPE_CHECKING:
    from vramkit.driver import Driver

MIB = 1 << 20
pytestmark = pytest.mark.sim_only


@pytest.mark.parametrize("family", FAMILIES)
def test_models_use_no_weights_in_host_memory(
    driver: Driver, family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VRAMKIT_DRIVER", "sim")
    model, inputs, generates = example(family)
    with torch.no_grad(), offload(model, "4.2MiB", keep_below=4096, ring=2 * MIB) as o:
        streamed = next(group for group in o._groups if not group.resident)
        with HostReads(o._store.addresses[0], o._store.nbytes) as reads:
            model(**inputs)
            if generates:
                inputs.pop("decoder_input_ids", None)
                model.generate(**inputs, max_new_tokens=2, do_sample=False)
            assert reads.found == []
            assert streamed.weights[0].tensor.add(1).device.type == "cpu"
        assert reads.found == ["add at test_models_use_no_weights_in_host_memory"]
