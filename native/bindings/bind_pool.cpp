// Binds the pool engine. The hot paths keep the GIL and call no driver; whatever may wait lets go
// of it.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <optional>
#include <string>

#include "bindings/bind.h"
#include "bindings/invoke.h"
#include "bindings/stream.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

using pool::Config;
using pool::Failure;
using pool::StreamRef;

[[noreturn]] void raise_failure(const Driver& driver, const Failure& why) {
    switch (why.kind) {
        case Failure::Kind::bad_value:
            throw nb::value_error(why.message.c_str());
        case Failure::Kind::closed:
            raise_closed(why.message);
        case Failure::Kind::out_of_memory:
            raise_out_of_memory("Pool.malloc", why.message);
        case Failure::Kind::driver:
            check(driver, why.code, why.call.c_str());
            break;
        default:
            break;
    }
    throw std::runtime_error(why.message.empty() ? "the pool failed" : why.message);
}

// The engine with the life it belongs to: a reset of the simulated GPU ends it.
class PoolEngine {
  public:
    PoolEngine(std::shared_ptr<Device> device, const Config& config)
        : device_(std::move(device)), epoch_(device_->session().epoch()) {
        Failure why;
        CUcontext context = nullptr;
        check(device_->session().driver(), device_->context(&context), "cuDevicePrimaryCtxRetain");
        {
            const GilReleased released;
            engine_ = pool::Pool::open(device_->session().shared_driver(), device_->handle(),
                                       context, config, why);
            unsigned long long id = 0;
            const ContextScope scope(*device_);
            if (device_->call().cuStreamGetId(nullptr, &id) == CUDA_SUCCESS) legacy_.id = id;
        }
        if (engine_ == nullptr) fail(why);
    }
    ~PoolEngine() {
        if (engine_ == nullptr) return;
        if (epoch_ != device_->session().epoch()) engine_->abandon();
        const GilReleased released;
        engine_.reset();
    }

    pool::Pool& engine() {
        if (epoch_ != device_->session().epoch()) {
            raise_closed("this Pool is gone: the simulated GPU was reset after it was made");
        }
        return *engine_;
    }
    [[noreturn]] void fail(const Failure& why) { raise_failure(device_->session().driver(), why); }
    const std::shared_ptr<Device>& device() const { return device_; }

    // Our own streams know their id; of a foreign one the driver is asked.
    StreamRef stream(nb::handle object) {
        if (object.is_none()) return legacy_;
        if (nb::isinstance<Stream>(object)) {
            const Stream& stream = *nb::inst_ptr<Stream>(object);
            stream.require_usable();
            if (stream.device().get() != device_.get()) {
                throw nb::value_error("the stream is of another device than the pool");
            }
            if (!stream.per_thread()) return {stream.handle(), stream.id()};
        }
        StreamRef result{stream_handle(object), 0};
        unsigned long long id = 0;
        const ContextScope scope(*device_);
        check(device_->session().driver(), device_->call().cuStreamGetId(result.handle, &id),
              "cuStreamGetId");
        result.id = id;
        return result;
    }

  private:
    std::shared_ptr<Device> device_;
    uint64_t epoch_;
    std::shared_ptr<pool::Pool> engine_;
    StreamRef legacy_;
};

uint64_t positive(int64_t bytes) {
    if (bytes <= 0) {
        const std::string text =
            "a block has at least 1 byte; asked for were " + std::to_string(bytes);
        throw nb::value_error(text.c_str());
    }
    return static_cast<uint64_t>(bytes);
}

uint64_t allocate(PoolEngine& self, int64_t bytes, nb::handle stream, bool may_wait, Failure& why) {
    const StreamRef ref = self.stream(stream);
    const uint64_t size = positive(bytes);
    if (const uint64_t address = self.engine().malloc_cached(size, ref); address != 0) {
        return address;
    }
    pool::Pool& engine = self.engine();
    const GilReleased released;
    return engine.malloc(size, ref, may_wait, why);
}

uint64_t malloc(PoolEngine& self, int64_t bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(self, bytes, stream, true, why);
    if (address == 0) self.fail(why);
    return address;
}

std::optional<uint64_t> try_malloc(PoolEngine& self, int64_t bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(self, bytes, stream, false, why);
    if (address != 0) return address;
    if (why.kind == Failure::Kind::out_of_memory) return std::nullopt;
    self.fail(why);
}

void free(PoolEngine& self, uint64_t address, std::optional<int64_t> size, nb::handle stream) {
    Failure why;
    pool::Pool::Full full;
    std::optional<uint64_t> bytes;
    if (size) bytes = positive(*size);
    std::optional<StreamRef> ref;
    if (!stream.is_none()) ref = self.stream(stream);
    pool::Pool& engine = self.engine();
    if (!engine.free_cached(address, bytes, ref, why, full)) self.fail(why);
    if (full.cache != nullptr) {
        const GilReleased released;
        engine.spill(full);
    }
}

nb::dict counts(PoolEngine& self) {
    const pool::Stats now = self.engine().stats();
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
    const GilReleased released;
    return engine.trim(wait);
}

void preallocate(PoolEngine& self, int64_t bytes, int64_t count) {
    Failure why;
    const uint64_t size = positive(bytes);
    const uint64_t blocks = positive(count);
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.preallocate(size, blocks, why);
    }
    if (!done) self.fail(why);
}

void shut(PoolEngine& self) {
    Failure why;
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.close(why);
    }
    if (!done) self.fail(why);
}

}  // namespace

void bind_pool(nb::module_& module) {
    nb::class_<Config>(module, "PoolConfig")
        .def(nb::new_(&config_from), nb::kw_only(), nb::arg("thread_cache_max_blocks"),
             nb::arg("global_cache_max_blocks"), nb::arg("batch_alloc_count"),
             nb::arg("cache_bytes"), nb::arg("limit"), nb::arg("enable_stats"),
             nb::arg("seed_classes"));
    nb::class_<PoolEngine>(module, "PoolEngine")
        .def(nb::init<std::shared_ptr<Device>, const Config&>(), nb::arg("device"),
             nb::arg("config"))
        .def("malloc", &malloc, nb::arg("size"), nb::arg("stream") = nb::none(),
             nb::sig("def malloc(self, size: int, stream: object | None = None) -> int"),
             "The address of `size` bytes, for use in the order of the stream (none: the legacy "
             "default stream).\nRaises OutOfMemoryError.")
        .def("try_malloc", &try_malloc, nb::arg("size"), nb::arg("stream") = nb::none(),
             nb::sig("def try_malloc(self, size: int, stream: object | None = None) -> int | None"),
             "As malloc, but never waits: None where nothing is to be had at once.")
        .def("free", &free, nb::arg("address"), nb::arg("size") = nb::none(),
             nb::arg("stream") = nb::none(),
             nb::sig("def free(self, address: int, size: int | None = None, "
                     "stream: object | None = None) -> None"),
             "Gives a block back at this point of its stream, or of the given one: all its use is "
             "ordered before.")
        .def("preallocate", &preallocate, nb::arg("size"), nb::arg("count"),
             "Has `count` blocks ready that are large enough for `size` bytes.")
        .def(
            "reset_stats", [](PoolEngine& self) { self.engine().reset_stats(); },
            "Counters from zero; usage and reserved memory stay.")
        .def(
            "check_invariants", [](PoolEngine& self) { return self.engine().check_invariants(); },
            "What does not hold of the engine's equations; empty when all is well.")
        .def("give_back", &give_back, nb::arg("wait"))
        .def("counts", &counts, nb::sig("def counts(self) -> dict[str, int]"))
        .def("shut", &shut)
        .def(
            "apply",
            [](PoolEngine& self, const Config& config) {
                Failure why;
                if (!self.engine().configure(config, why)) self.fail(why);
            },
            nb::arg("config"));
}

}  // namespace vramkit
