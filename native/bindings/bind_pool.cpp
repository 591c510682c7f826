// Binds the pool engine. The hot paths keep the GIL and call no driver; calls that may wait release
// it.
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
#include "bindings/shortage_callback.h"
#include "pool/instances.h"
#include "pool/pool.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

using pool::Config;

class PoolEngine final : public NativeResource {
  public:
    // Without settings: the process-wide pool, which C programs share.
    PoolEngine(std::shared_ptr<Device> given, const Config* config)
        : NativeResource(std::move(given), "Pool") {
        Failure why;
        const std::shared_ptr<Driver>& driver = device()->session().shared_driver();
        {
            const GilReleased released;
            if (config != nullptr) {
                handle_ = pool::open_pool(driver, device()->ordinal(), *config, why);
            } else {
                // The registry owns it.
                handle_ = {pool::process_wide_pool(driver, device()->ordinal(), why), [](auto*) {}};
            }
        }
        if (handle_ == nullptr) fail(why);
    }
    ~PoolEngine() override {
        if (handle_ == nullptr) return;
        if (ExitGate::closed()) {
            // Python exits: nothing may wait for the GPU now, and the process ends with its memory.
            static_cast<void>(new std::shared_ptr<pool::Handle>(std::move(handle_)));
            return;
        }
        const GilReleased released;
        handle_.reset();
    }

    uint64_t malloc(uint64_t bytes, nb::handle stream) override;
    void free(uint64_t address, std::optional<uint64_t> bytes, nb::handle stream) override;

    Resource& native() override { return engine(); }
    // Raises ClosedError after a reset of the simulated GPU, and in a forked child.
    pool::Pool& engine() {
        require_present();
        return *handle_->engine;
    }
    bool closed() const { return lost() || handle_->engine->closed(); }
    uintptr_t c_handle() const { return reinterpret_cast<uintptr_t>(handle_.get()); }
    using NativeResource::gone;
    using NativeResource::require_present;
    using NativeResource::stream;

  private:
    std::shared_ptr<pool::Handle> handle_;
};

uint64_t allocate(PoolEngine& self, uint64_t size, nb::handle stream, bool may_wait, Failure& why) {
    pool::Pool& engine = self.engine();
    const StreamRef ref = self.stream(stream);
    // A tool may need the GIL, as compute-sanitizer seems to: never wait for it with the GIL held.
    if (!engine.has_tool()) {
        if (const uint64_t address = engine.malloc_cached(size, ref); address != 0) return address;
    }
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

// A thread must release the GIL before it waits for the engine's lock: the holder of the lock may
// wait for work that ends in a Python host function.
void PoolEngine::free(uint64_t address, std::optional<uint64_t> bytes, nb::handle on) {
    using Freed = pool::Pool::Freed;
    Failure why;
    pool::Pool::Full full;
    pool::Pool& pool = engine();
    std::optional<StreamRef> ref;
    if (!on.is_none()) ref = stream(on);
    if (!pool.has_tool() &&
        pool.free_cached(address, bytes.value_or(0), ref ? &*ref : nullptr, full) == Freed::yes) {
        if (full.cache == nullptr) return;
        const GilReleased released;
        pool.spill(full);
        return;
    }
    bool done;
    {
        const GilReleased released;
        done = pool.free(address, bytes, ref, why);
    }
    if (!done) fail(why, "free");
}

nb::dict counts(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    pool::Stats now;
    {
        const GilReleased released;
        now = engine.stats();
    }
    nb::dict result;
#define VRAMKIT_STAT(type, name) result[#name] = now.name;
#include "pool/stats.def"
#undef VRAMKIT_STAT
    return result;
}

nb::dict layout(PoolEngine& self) {
    using Layout = pool::Layout;
    pool::Pool& engine = self.engine();
    Layout now;
    {
        const GilReleased released;
        now = engine.layout();
    }
    constexpr const char* states[] = {"idle", "live", "cached", "waiting", "live", "waiting"};
    const auto list = [](const auto& all, auto convert) {
        nb::list result;
        for (const auto& each : all) {
            nb::dict entry;
            convert(each, entry);
            result.append(entry);
        }
        return result;
    };
    nb::dict result;
    result["extents"] = list(now.extents, [&](const Layout::OneExtent& each, nb::dict& entry) {
        entry["address"] = each.address;
        entry["bytes"] = each.bytes;
        nb::list pieces;
        for (const uint64_t bytes : each.pieces) pieces.append(bytes);
        entry["pieces"] = pieces;
    });
    result["slabs"] = list(now.slabs, [](const Layout::OneSlab& each, nb::dict& entry) {
        entry["address"] = each.address;
        entry["bytes"] = each.bytes;
        entry["block_bytes"] = each.block_bytes;
        entry["count"] = each.count;
    });
    result["blocks"] = list(now.blocks, [&](const Layout::OneBlock& each, nb::dict& entry) {
        entry["address"] = each.address;
        entry["bytes"] = each.bytes;
        entry["asked"] = each.asked;
        entry["state"] = states[static_cast<std::size_t>(each.state)];
        entry["stream"] = each.stream;
    });
    result["streams"] = list(now.streams, [](const Layout::OneStream& each, nb::dict& entry) {
        const bool legacy = each.id == kLegacyStreamId;
        entry["id"] = legacy ? 0 : each.id;
        entry["kind"] = legacy ? "legacy" : each.capture ? "capture" : "stream";
        entry["ended"] = each.ended;
    });
    return result;
}

// Python's names of choices, in the order of the enumerators.
constexpr const char* choices(pool::SizeClasses value) {
    return value == pool::SizeClasses::fine ? "fine" : "power_of_two";
}
constexpr const char* choices(pool::Large value) {
    return value == pool::Large::pool ? "pool" : "direct";
}
template <class Choice>
Choice choice_named(const std::string& name, const std::string& text) {
    for (const int value : {0, 1}) {
        if (text == choices(static_cast<Choice>(value))) return static_cast<Choice>(value);
    }
    throw nb::value_error(("no setting " + name + " with the value " + text).c_str());
}

void set_field(Config& config, const std::string& name, nb::handle value) {
#define VRAMKIT_NUMBER(field, usual, least, most, allowed)      \
    if (name == #field) {                                       \
        config.field = nb::cast<decltype(config.field)>(value); \
        return;                                                 \
    }
#define VRAMKIT_PART(field, usual) VRAMKIT_NUMBER(field, usual, 0, 1, "")
#define VRAMKIT_FLAG(field, usual) VRAMKIT_NUMBER(field, usual, 0, 1, "")
#define VRAMKIT_CHOICE(field, Type, usual)                                           \
    if (name == #field) {                                                            \
        config.field = choice_named<pool::Type>(name, nb::cast<std::string>(value)); \
        return;                                                                      \
    }
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    throw nb::value_error(("there is no setting " + name).c_str());
}

// The default settings of a pool, for the test that compares Python's list.
nb::dict default_settings() {
    const Config config;
    nb::dict result;
#define VRAMKIT_NUMBER(field, usual, least, most, allowed) result[#field] = config.field;
#define VRAMKIT_PART(field, usual) result[#field] = config.field;
#define VRAMKIT_FLAG(field, usual) result[#field] = config.field;
#define VRAMKIT_CHOICE(field, Type, usual) result[#field] = choices(config.field);
#include "pool/settings.def"
#undef VRAMKIT_NUMBER
#undef VRAMKIT_PART
#undef VRAMKIT_CHOICE
#undef VRAMKIT_FLAG
    return result;
}

Config config_from(const nb::kwargs& settings) {
    Config config;
    for (const auto& [name, value] : settings) {
        set_field(config, nb::cast<std::string>(name), value);
    }
    Failure why;
    if (!pool::is_valid(config, why)) throw nb::value_error(why.message.c_str());
    return config;
}

void also_used_on(PoolEngine& self, nb::handle address, nb::handle stream) {
    Failure why;
    const uint64_t block = pointer(address);
    pool::Pool& engine = self.engine();
    const StreamRef ref = self.stream(stream);
    bool done;
    {
        const GilReleased released;
        done = engine.also_used_on(block, ref, why);
    }
    if (!done) self.fail(why, "also_used_on");
}

uint64_t defragment(PoolEngine& self) {
    Failure why;
    pool::Pool& engine = self.engine();
    uint64_t moved;
    {
        const GilReleased released;
        moved = engine.defragment(why);
    }
    if (why.kind != Failure::Kind::none) self.fail(why, "defragment");
    return moved;
}

bool step(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    if (engine.closed()) raise_closed("the pool is closed");
    const GilReleased released;
    return engine.step();
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

uint64_t add_callback(PoolEngine& self, nb::callable function) {
    pool::Pool& engine = self.engine();
    if (engine.closed()) raise_closed("the pool is closed");
    return engine.shortage().add(shortage_callback(std::move(function)));
}

// A call under way may need the GIL to end.
void remove_callback(PoolEngine& self, uint64_t number) {
    if (self.lost()) return;
    pool::Pool& engine = self.engine();
    const GilReleased released;
    engine.shortage().remove(number);
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

void reset_peaks(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    const GilReleased released;
    engine.reset_peaks();
}

std::string check_invariants(PoolEngine& self) {
    pool::Pool& engine = self.engine();
    const GilReleased released;
    return engine.check_invariants();
}

}  // namespace

void bind_pool(nb::module_& module) {
    nb::class_<Config>(module, "PoolConfig")
        .def(nb::new_(&config_from))
        .def_static("defaults", &default_settings, nb::sig("def defaults() -> dict[str, Any]"));
    nb::class_<NativeResource>(module, "NativeResource",
                               "A resource written in C++: the native player can use it.");
    nb::class_<PoolEngine, NativeResource> engine(module, "PoolEngine");
    bind_blocks(engine);
    engine
        .def(nb::init<std::shared_ptr<Device>, const Config*>(), nb::arg("device"),
             nb::arg("config").none())
        .def("try_malloc", &try_malloc, nb::arg("size").none(), nb::arg("stream") = nb::none(),
             nb::sig("def try_malloc(self, size: int, stream: object | None = None) -> int | None"),
             "As malloc, but never waits for work: None if no memory is available at once.")
        .def("preallocate", &preallocate, nb::arg("size").none(), nb::arg("count").none(),
             nb::sig("def preallocate(self, size: int, count: int) -> None"),
             "Make `count` blocks ready that are large enough for `size` bytes.")
        .def("reset_stats", &reset_stats, "Counters from zero; usage and reserved memory stay.")
        .def("reset_peaks", &reset_peaks,
             "peak_usage and peak_reserved from what is in use and held now; counters stay.")
        .def("check_invariants", &check_invariants,
             "Which of the engine's invariants do not hold; empty: all hold. No other thread may "
             "use the pool in the meantime.")
        .def_prop_ro(
            "reserved_bytes", [](PoolEngine& self) { return self.engine().reserved_bytes(); },
            "Bytes taken from the driver.")
        .def_prop_ro("c_handle", &PoolEngine::c_handle,
                     "The vramkit_pool* of the C interface, as long as this object lives.")
        .def("also_used_on", &also_used_on, nb::arg("address").none(), nb::arg("stream").none(),
             nb::sig("def also_used_on(self, address: int, stream: object | None) -> None"),
             "The block is used on this stream too (none: the legacy default stream). When freed, "
             "it is held until the work that the stream has then is done; neither host nor stream "
             "waits.")
        .def("defragment", &defragment,
             "Join all idle memory into one piece. Returns the bytes moved.")
        .def("step", &step,
             "One round of what the background thread does. True: events are pending, call again "
             "soon.")
        .def("_layout", &layout, nb::sig("def _layout(self) -> dict[str, Any]"),
             "The layout of its memory: extents, slabs, blocks and streams.")
        .def("_require_present", &PoolEngine::require_present,
             "Raises ClosedError in a forked child and after a reset of the simulated GPU.")
        .def("_add_shortage_callback", &add_callback, nb::arg("function"),
             nb::sig("def _add_shortage_callback(self, function: object) -> int"))
        .def("_remove_shortage_callback", &remove_callback, nb::arg("number"))
        .def("_live_bytes", [](PoolEngine& self) { return self.engine().live_bytes(); })
        .def("_give_back", &give_back, nb::arg("wait"))
        .def("_counts", &counts, nb::sig("def _counts(self) -> dict[str, float]"))
        .def("_shut", &shut)
        .def("_apply", &apply, nb::arg("config"));
}

}  // namespace vramkit
