"""Resident weights give way to tensors of PyTorch on a card, and return.

A process of its own: PyTorch's allocator is replaced before its first use of CUDA."""

from __future__ import annotations

import torch

import vramkit
from vramkit.integrations import torch as integration

MIB = 1 << 20


def main() -> None:
    pool = integration.install(vramkit.Pool(limit=384 * MIB))
    assert integration.serving() is pool
    torch.manual_seed(0)
    layers = [torch.nn.Linear(2048, 2048) for _ in range(12)]  # 16 MiB each
    model = torch.nn.Sequential(*layers).eval()
    x = torch.randn(64, 2048, device="cuda")
    with torch.no_grad():
        model.to("cuda")
        expected = model(x).cpu()
        model.to("cpu")
        torch.cuda.empty_cache()
        with vramkit.offload(model, 144 * MIB, ring=40 * MIB) as o:
            first = o.report().giving_way
            assert first is not None, o.report()
            assert first.groups >= 4, first
            for _ in range(3):
                assert torch.equal(model(x).cpu(), expected)
            # A cache that grows while the model runs, until nearly all of the pool is its own and
            # that of cuBLAS, which has 32 MiB on this card.
            cache = []
            for _ in range(20):
                cache.append(torch.ones(4 * MIB, device="cuda"))  # 16 MiB
                assert torch.equal(model(x).cpu(), expected)
            during = o.report()
            assert during.giving_way is not None and during.giving_way.away >= 4, during
            # More than there is: an error, and the model goes on.
            try:
                torch.ones(64 * MIB, device="cuda")
            except torch.OutOfMemoryError:
                pass
            else:
                raise AssertionError("the pool has no 256 MiB")
            assert torch.equal(model(x).cpu(), expected)
            assert all(bool((block == 1).all()) for block in cache)
            cache.clear()
            for _ in range(80):
                assert torch.equal(model(x).cpu(), expected)
            after = o.report()
            assert after.giving_way is not None and after.giving_way.away == 0, after
            assert after.giving_way.returned == after.giving_way.gave_way, after
            misses = o.stats().misses
            for _ in range(3):
                assert torch.equal(model(x).cpu(), expected)
            assert o.stats().misses == misses
            print(after)
        assert torch.equal(model.to("cuda")(x).cpu(), expected)


if __name__ == "__main__":
    main()
