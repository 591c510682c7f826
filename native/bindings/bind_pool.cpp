// Binds the pool engine. The hot paths keep the GIL and call no driver; whatever may wait lets go
// of it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/bind_blocks.h"
#include "bindings/invoke.h"
#include "bindings/native_resource.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

using pool::Config;
using pool::Failure;
using pool::StreamRef;

class PoolEngine final : public NativeResource {
  public:
    PoolEngine(std::shared_ptr<Device> given, const Config& config)
        : NativeResource(std::move(given), "Pool") {
        Failure why;
        CUcontext context = nullptr;
        check(device()->session().driver(), device()->context(&context),
              "cuDevicePrimaryCtxRetain");
        {
            const GilReleased released;
            engine_ = pool::Pool::open(device()->session().shared_driver(), device()->handle(),
                                       context, config, why);
        }
        if (engine_ == nullptr) fail(why);
    }
    ~PoolEngine() override {
        if (engine_ == nullptr) return;
        if (ExitGate::closed()) {
            // Python exits: nothing may wait for the GPU now, and the process ends with its memory.
            static_cast<void>(new std::shared_ptr<pool::Pool>(std::move(engine_)));
            return;
        }
        const GilReleased released;
        engine_.reset();
    }

    uint64_t malloc(uint64_t bytes, nb::handle stream) override;
    void free(uint64_t address, std::optional<uint64_t> bytes, nb::handle stream) override;

    // Raises ClosedError where the driver that the pool works with is no more, or not this
    // process's.
    pool::Pool& engine() {
        require_present();
        return *engine_;
    }
    bool closed() const { return lost() || engine_->closed(); }
    using NativeResource::fail;
    using NativeResource::gone;
    using NativeResource::stream;

  private:
    std::shared_ptr<pool::Pool> engine_;
};

uint64_t allocate(PoolEngine& self, uint64_t size, nb::handle stream, bool may_wait, Failure& why) {
    pool::Pool& engine = self.engine();
    const StreamRef ref = self.stream(stream);
    if (const uint64_t address = engine.malloc_cached(size, ref); address != 0) return address;
    const GilReleased released;
    return engine.malloc(size, ref, may_wait, why);
}

std::optional<uint64_t> try_malloc(PoolEngine& self, nb::handle bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(self, positive(bytes, "size"), stream, false, why);
    if (address != 0) return address;
    if (why.kind == Failure::Kind::out_of_memory) return std::nullopt;
    self.fail(why, "try_malloc");
}

uint64_t PoolEngine::malloc(uint64_t bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(*this, bytes, stream, true, why);
    if (address == 0) fail(why, "malloc");
    return address;
}

// Whoever waits for the engine's lock must have let go of the GIL: its holder may wait for work
// that ends in a Python host function.
void PoolEngine::free(uint64_t address, std::optional<uint64_t> bytes, nb::handle on) {
    using Freed = pool::Pool::Freed;
    Failure why;
    pool::Pool::Full full;
    pool::Pool& pool = engine();
    std::optional<StreamRef> ref;
    if (!on.is_none()) ref = stream(on);
    Freed freed = pool.free_cached(address, bytes, ref, why, full);
    if (freed == Freed::no_cache) {
        const GilReleased released;
        freed = pool.free(address, bytes, ref, why) ? Freed::yes : Freed::refused;
    } else if (full.cache != nullptr) {
        const GilReleased released;
        pool.spill(full);
    }
    if (freed == Freed::refused) fail(why, "free");
}

nb::dict counts(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    pool::Stats now;
    {
        const GilReleased released;
        now = engine.stats();
    }
    nb::dict result;
#define VRAMKIT_STAT(name) result[#name] = now.name
    VRAMKIT_STAT(total_allocated);
    VRAMKIT_STAT(total_freed);
    VRAMKIT_STAT(allocation_count);
    VRAMKIT_STAT(free_count);
    VRAMKIT_STAT(cache_hits);
    VRAMKIT_STAT(cache_misses);
    VRAMKIT_STAT(global_hits);
    VRAMKIT_STAT(fresh_hits);
    VRAMKIT_STAT(device_growths);
    VRAMKIT_STAT(current_usage);
    VRAMKIT_STAT(peak_usage);
    VRAMKIT_STAT(reserved);
    VRAMKIT_STAT(peak_reserved);
    VRAMKIT_STAT(cached);
    VRAMKIT_STAT(waiting);
    VRAMKIT_STAT(chunks);
    VRAMKIT_STAT(marks);
#undef VRAMKIT_STAT
    return result;
}

Config config_from(uint64_t thread_cache_max_blocks, uint64_t global_cache_max_blocks,
                   uint64_t batch_alloc_count, uint64_t cache_bytes, uint64_t limit,
                   bool enable_stats, bool seed_classes) {
    return {thread_cache_max_blocks,
            global_cache_max_blocks,
            batch_alloc_count,
            cache_bytes,
            limit,
            enable_stats,
            seed_classes ? pool::Classes::seed : pool::Classes::fine};
}

uint64_t give_back(PoolEngine& self, bool wait) {
    pool::Pool& engine = self.engine();
    if (engine.closed()) raise_closed("the pool is closed");
    const GilReleased released;
    return engine.trim(wait);
}

void preallocate(PoolEngine& self, nb::handle bytes, nb::handle count) {
    Failure why;
    const uint64_t size = positive(bytes, "size");
    const uint64_t blocks = positive(count, "count");
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.preallocate(size, blocks, why);
    }
    if (!done) self.fail(why, "preallocate");
}

void shut(PoolEngine& self) {
    if (self.gone()) return;
    Failure why;
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.close(why);
    }
    if (!done) self.fail(why, "close");
}

void apply(PoolEngine& self, const Config& config) {
    Failure why;
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.configure(config, why);
    }
    if (!done) self.fail(why, "configure");
}

void reset_stats(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    const GilReleased released;
    engine.reset_stats();
}

std::string check_invariants(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    const GilReleased released;
    return engine.check_invariants();
}

}  // namespace

void bind_pool(nb::module_& module) {
    nb::class_<Config>(module, "PoolConfig")
        .def(nb::new_(&config_from), nb::kw_only(), nb::arg("thread_cache_max_blocks"),
             nb::arg("global_cache_max_blocks"), nb::arg("batch_alloc_count"),
             nb::arg("cache_bytes"), nb::arg("limit"), nb::arg("enable_stats"),
             nb::arg("seed_classes"));
    nb::class_<PoolEngine> engine(module, "PoolEngine");
    bind_blocks(engine);
    engine
        .def(nb::init<std::shared_ptr<Device>, const Config&>(), nb::arg("device"),
             nb::arg("config"))
        .def("try_malloc", &try_malloc, nb::arg("size"), nb::arg("stream") = nb::none(),
             nb::sig("def try_malloc(self, size: int, stream: object | None = None) -> int | None"),
             "As malloc, but never waits: None where nothing is to be had at once.")
        .def("preallocate", &preallocate, nb::arg("size"), nb::arg("count"),
             nb::sig("def preallocate(self, size: int, count: int) -> None"),
             "Has `count` blocks ready that are large enough for `size` bytes.")
        .def("reset_stats", &reset_stats, "Counters from zero; usage and reserved memory stay.")
        .def(
            "check_invariants", &check_invariants,
            "What does not hold of the engine's equations; empty when all is well. No other thread "
            "may use the pool meanwhile.")
        .def("give_back", &give_back, nb::arg("wait"))
        .def("counts", &counts, nb::sig("def counts(self) -> dict[str, int]"))
        .def("shut", &shut)
        .def("apply", &apply, nb::arg("config"));
}

}  // namespace vramkit
