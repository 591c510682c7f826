"""What the study of three allocators claims."""

from __future__ import annotations

from vramkit.lab.allocators.judges import (
    ALL,
    a_call_takes_microseconds,
    a_pool_makes_no_call,
    a_pool_needs_the_peak,
    all_within,
    arena_is_mostly_first,
    async_gains_at_most,
    async_holds_the_average,
    best_in_predictable,
    fourteen_times,
    gain_between,
    gain_of_mutex,
    gain_of_workload,
    level,
    of_all,
    share,
)
from vramkit.lab.allocators.workloads import DYNAMIC, PREDICTABLE
from vramkit.lab.claims import Claim
from vramkit.lab.stand_ins import ARENA, ASYNC, POOL

CLAIMS = (
    Claim("allocation is 2 % of the time", of_all(share("allocation", 0.01, 0.04), ALL)),
    Claim("kernels are 95 % of the time", of_all(share("kernels", 0.9, 1.0), ALL)),
    Claim("synchronisation is 3 % of the time", of_all(share("wait", 0.015, 0.06), ALL)),
    Claim(
        "half of the allocation time is 1 % of the whole",
        of_all(share("allocation", 0.005, 0.02, 0.5), ALL),
    ),
    Claim("a pool's allocation takes microseconds", of_all(a_call_takes_microseconds, ALL)),
    Claim(
        "the pool makes no GPU memory call in the steady state",
        of_all(a_pool_makes_no_call, ALL),
        of_times=False,
    ),
    Claim(
        "pool, async and arena differ by less than 5 %", of_all(all_within(0.05), ALL, each=True)
    ),
    Claim(
        "async gains less than 3 % over the pool",
        of_all(async_gains_at_most(0.03), DYNAMIC, each=True),
    ),
    Claim(
        "async is 2.1 % faster than the pool with extreme sizes",
        gain_between("extreme_sizes", ASYNC, POOL, 0.021),
    ),
    Claim(
        "arena is 7.6 % faster than async with extreme sizes",
        gain_between("extreme_sizes", ARENA, ASYNC, 0.076),
    ),
    Claim("pool and async are level with interleaved streams", level("interleaved", (POOL, ASYNC))),
    Claim("the three are level with 32 streams", level("concurrent")),
    Claim("async is 1.8 % faster in fast churn", gain_between("churn", ASYNC, POOL, 0.018)),
    Claim(
        "arena is 6.7 % faster than the pool with interleaved streams",
        gain_between("interleaved", ARENA, POOL, 543 / 509 - 1),
    ),
    Claim(
        "arena is 37 % faster in small frequent allocations",
        gain_between("small_frequent", ARENA, POOL, 0.37),
    ),
    Claim(
        "async is 2.6 % slower in small frequent allocations",
        gain_between("small_frequent", POOL, ASYNC, 0.026),
    ),
    Claim("arena is fastest in most dynamic workloads", of_all(arena_is_mostly_first, DYNAMIC)),
    Claim("the pool is best in predictable workloads", of_all(best_in_predictable, PREDICTABLE)),
    Claim(
        "with a mutex the pool needs half the time in simple operations",
        gain_of_mutex(POOL, "simple", 53, 26),
    ),
    Claim(
        "with a mutex async needs a third less in simple operations (47 ms, 31 ms)",
        gain_of_mutex(ASYNC, "simple", 47, 31),
    ),
    Claim(
        "with a mutex arena needs a fifth less in simple operations (43 ms, 34 ms)",
        gain_of_mutex(ARENA, "simple", 43, 34),
    ),
    Claim(
        "with a mutex the pool gains 16 % in complex operations (78 ms, 67 ms)",
        gain_of_mutex(POOL, "complex", 78, 67),
    ),
    Claim(
        "with a mutex async gains 7 % in complex operations (78 ms, 73 ms)",
        gain_of_mutex(ASYNC, "complex", 78, 73),
    ),
    Claim(
        "with a mutex arena loses 13 % in complex operations (78 ms, 88 ms)",
        gain_of_mutex(ARENA, "complex", 78, 88),
    ),
    Claim("any pool is 14 times as fast as plain cudaMalloc", of_all(fourteen_times, ALL)),
    Claim("fused kernels gain 23 %", gain_of_workload("fused", "unfused", 0.23)),
    Claim(
        "how streams are waited for gains 50 %", gain_of_workload("wait_stream", "wait_device", 0.5)
    ),
    Claim(
        "on a card of 4 GB with a peak of 3.5 GB a pool must hold the peak",
        a_pool_needs_the_peak,
        of_times=False,
    ),
    Claim("on that card async holds the 1 GB that is in use on average", async_holds_the_average),
)
