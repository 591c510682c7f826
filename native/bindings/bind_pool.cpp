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
#include "capi/handle.h"
#include "capi/instances.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

using pool::Config;
using pool::Failure;
using pool::StreamRef;

[[noreturn]] void raise_failure(const Driver& driver, const Failure& why, const char* call) {
    switch (why.kind) {
        case Failure::Kind::bad_value:
            throw nb::value_error(why.message.c_str());
        case Failure::Kind::closed:
        case Failure::Kind::forked:
            raise_closed(why.message);
        case Failure::Kind::out_of_memory:
            if (why.message.empty()) check(driver, why.code, why.call.c_str());
            raise_out_of_memory(call, why.message);
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
    // Without settings: the process-wide one, which programs in C share.
    PoolEngine(std::shared_ptr<Device> device, const Config* config)
        : device_(std::move(device)), epoch_(device_->session().epoch()) {
        Failure why;
        const std::shared_ptr<Driver>& driver = device_->session().shared_driver();
        {
            const GilReleased released;
            if (config != nullptr) {
                handle_ = capi::open_pool(driver, device_->ordinal(), *config, why);
            } else {
                // The registry keeps it.
                handle_ = {capi::process_wide_pool(driver, device_->ordinal(), why), [](auto*) {}};
            }
        }
        if (handle_ == nullptr) fail(why, "Pool");
    }
    ~PoolEngine() {
        if (handle_ == nullptr) return;
        if (!ExitGate::enter()) {
            // Python exits: nothing may wait for the GPU now, and the process ends with its memory.
            static_cast<void>(new std::shared_ptr<vramkit_pool>(std::move(handle_)));
            return;
        }
        ExitGate::leave();
        const GilReleased released;
        handle_.reset();
    }

    // Raises ClosedError where the driver that the pool works with is no more, or not this
    // process's.
    pool::Pool& engine() {
        if (gone()) {
            raise_closed("this Pool is gone: the simulated GPU was reset after it was made");
        }
        if (handle_->engine->forked()) {
            raise_closed("this Pool belongs to the parent process: a forked child cannot use it");
        }
        return *handle_->engine;
    }
    bool gone() const { return epoch_ != device_->session().epoch(); }
    bool closed() const { return gone() || handle_->engine->closed(); }
    [[noreturn]] void fail(const Failure& why, const char* call) {
        raise_failure(device_->session().driver(), why, call);
    }
    const std::shared_ptr<Device>& device() const { return device_; }
    uintptr_t c_handle() const { return reinterpret_cast<uintptr_t>(handle_.get()); }

    // Our own streams know their id; of a foreign one the driver is asked.
    StreamRef stream(nb::handle object) {
        if (object.is_none()) return handle_->legacy;
        if (nb::isinstance<Stream>(object)) {
            const Stream& stream = *nb::inst_ptr<Stream>(object);
            stream.require_usable();
            if (stream.device().get() != device_.get()) {
                throw nb::value_error("the stream is of another device than the pool");
            }
            if (!stream.per_thread()) return {stream.handle(), stream.id(), stream.owned()};
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
    std::shared_ptr<vramkit_pool> handle_;
};

// Any integer of 1 and more that 63 bits hold; a TypeError for what is none, a ValueError, which
// says what was given, for the rest.
uint64_t positive(nb::handle number, const char* what) {
    const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    int overflow = 0;
    const long long value = PyLong_AsLongLongAndOverflow(index.ptr(), &overflow);
    if (overflow == 0 && value > 0) return static_cast<uint64_t>(value);
    const std::string text = std::string(what) + " is " + nb::str(index).c_str() +
                             "; it may be 1 to " + std::to_string(pool::kLargestRequest);
    throw nb::value_error(text.c_str());
}

// 0, which is no pool's, for what no pointer can be.
uint64_t pointer(nb::handle number) {
    const nb::object index = nb::steal(PyNumber_Index(number.ptr()));
    if (!index.is_valid()) throw nb::python_error();
    const unsigned long long value = PyLong_AsUnsignedLongLong(index.ptr());
    if (value == static_cast<unsigned long long>(-1) && PyErr_Occurred() != nullptr) {
        PyErr_Clear();
        return 0;
    }
    return value;
}

uint64_t allocate(PoolEngine& self, nb::handle bytes, nb::handle stream, bool may_wait,
                  Failure& why) {
    const uint64_t size = positive(bytes, "size");
    pool::Pool& engine = self.engine();
    const StreamRef ref = self.stream(stream);
    if (const uint64_t address = engine.malloc_cached(size, ref); address != 0) return address;
    const GilReleased released;
    return engine.malloc(size, ref, may_wait, why);
}

uint64_t malloc(PoolEngine& self, nb::handle bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(self, bytes, stream, true, why);
    if (address == 0) self.fail(why, "Pool.malloc");
    return address;
}

std::optional<uint64_t> try_malloc(PoolEngine& self, nb::handle bytes, nb::handle stream) {
    Failure why;
    const uint64_t address = allocate(self, bytes, stream, false, why);
    if (address != 0) return address;
    if (why.kind == Failure::Kind::out_of_memory) return std::nullopt;
    self.fail(why, "Pool.try_malloc");
}

// Whoever waits for the engine's lock must have let go of the GIL: its holder may wait for work
// that ends in a Python host function.
void free(PoolEngine& self, nb::handle address, nb::handle size, nb::handle stream) {
    using Freed = pool::Pool::Freed;
    Failure why;
    pool::Pool::Full full;
    const uint64_t block = pointer(address);
    std::optional<uint64_t> bytes;
    if (!size.is_none()) bytes = positive(size, "size");
    pool::Pool& engine = self.engine();
    std::optional<StreamRef> ref;
    if (!stream.is_none()) ref = self.stream(stream);
    Freed freed = engine.free_cached(block, bytes, ref, why, full);
    if (freed == Freed::no_cache) {
        const GilReleased released;
        freed = engine.free(block, bytes, ref, why) ? Freed::yes : Freed::refused;
    } else if (full.cache != nullptr) {
        const GilReleased released;
        engine.spill(full);
    }
    if (freed == Freed::refused) self.fail(why, "Pool.free");
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
    if (!done) self.fail(why, "Pool.preallocate");
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
    if (!done) self.fail(why, "Pool.close");
}

void apply(PoolEngine& self, const Config& config) {
    Failure why;
    pool::Pool& engine = self.engine();
    bool done;
    {
        const GilReleased released;
        done = engine.configure(config, why);
    }
    if (!done) self.fail(why, "Pool.configure");
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
    nb::class_<PoolEngine>(module, "PoolEngine")
        .def(nb::init<std::shared_ptr<Device>, const Config*>(), nb::arg("device"),
             nb::arg("config").none())
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
             nb::sig("def preallocate(self, size: int, count: int) -> None"),
             "Has `count` blocks ready that are large enough for `size` bytes.")
        .def("reset_stats", &reset_stats, "Counters from zero; usage and reserved memory stay.")
        .def(
            "check_invariants", &check_invariants,
            "What does not hold of the engine's equations; empty when all is well. No other thread "
            "may use the pool meanwhile.")
        .def_prop_ro("closed", &PoolEngine::closed)
        .def_prop_ro("c_handle", &PoolEngine::c_handle,
                     "The vramkit_pool* of the C interface, as long as this object lives.")
        .def("give_back", &give_back, nb::arg("wait"))
        .def("counts", &counts, nb::sig("def counts(self) -> dict[str, int]"))
        .def("shut", &shut)
        .def("apply", &apply, nb::arg("config"));
}

}  // namespace vramkit
