// Binds the plain resources.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <memory>
#include <optional>
#include <utility>

#include "bindings/bind.h"
#include "bindings/bind_blocks.h"
#include "bindings/invoke.h"
#include "resources/arena.h"
#include "resources/direct.h"
#include "resources/driver_pool.h"
#include "resources/fixed_pool.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// Any of them; their calls may wait for the driver, so all release the GIL.
class PlainEngine : public NativeResource {
  public:
    ~PlainEngine() override {
        if (engine_ == nullptr) return;
        if (ExitGate::closed() || forked()) {
            // At exit nothing may wait for the GPU, and in a forked child it is the parent's: the
            // memory ends with the process.
            static_cast<void>(new std::shared_ptr<resources::PlainResource>(std::move(engine_)));
            return;
        }
        const GilReleased released;
        engine_->end();
        engine_.reset();
    }

    uint64_t malloc(uint64_t bytes, nb::handle on) override {
        resources::PlainResource& resource = engine();
        const StreamRef ref = stream(on);
        Failure why;
        uint64_t address;
        {
            const GilReleased released;
            address = resource.malloc(bytes, ref, why);
        }
        if (address == 0) fail(why, "malloc");
        return address;
    }
    void free(uint64_t address, std::optional<uint64_t> bytes, nb::handle on) override {
        resources::PlainResource& resource = engine();
        std::optional<StreamRef> ref;
        if (!on.is_none()) ref = stream(on);
        Failure why;
        bool done;
        {
            const GilReleased released;
            done = resource.free(address, bytes, ref, why);
        }
        if (!done) fail(why, "free");
    }
    void close() {
        if (gone()) return;
        resources::PlainResource& resource = engine();
        Failure why;
        bool done;
        {
            const GilReleased released;
            done = resource.close(why);
        }
        if (!done) fail(why, "close");
    }
    bool closed() const { return lost() || engine_->closed(); }
    Resource& native() override { return engine(); }
    // Raises ClosedError after a reset of the simulated GPU, and in a forked child.
    resources::PlainResource& engine() const {
        require_present();
        return *engine_;
    }

  protected:
    PlainEngine(std::shared_ptr<Device> given, const char* name)
        : NativeResource(std::move(given), name) {
        check(device()->session().driver(), device()->context(&context_),
              "cuDevicePrimaryCtxRetain");
    }
    // Takes what `open` makes; the GIL is released meanwhile.
    template <typename Open>
    void open(const Open& open) {
        Failure why;
        {
            const GilReleased released;
            engine_ = open(device()->session().shared_driver(), context_, why);
        }
        if (engine_ == nullptr) fail(why);
    }

    std::shared_ptr<resources::PlainResource> engine_;

  private:
    CUcontext context_ = nullptr;
};

using SharedDriver = std::shared_ptr<Driver>;

class DirectEngine final : public PlainEngine {
  public:
    explicit DirectEngine(std::shared_ptr<Device> given)
        : PlainEngine(std::move(given), "DirectResource") {
        open([](SharedDriver driver, CUcontext context, Failure&) {
            return std::make_shared<resources::Direct>(std::move(driver), context);
        });
    }
};

class DriverPoolEngine final : public PlainEngine {
  public:
    DriverPoolEngine(std::shared_ptr<Device> given, bool shared, std::optional<uint64_t> threshold)
        : PlainEngine(std::move(given), "AsyncResource") {
        open([&](SharedDriver driver, CUcontext context, Failure& why) {
            return resources::DriverPool::open(std::move(driver), device()->handle(), context,
                                               {shared, threshold}, why);
        });
    }
    uint64_t release_threshold() const { return driver_pool().release_threshold(); }
    void trim() {
        resources::DriverPool& pool = driver_pool();
        if (pool.closed()) raise_closed("the AsyncResource is closed");
        Failure why;
        bool done;
        {
            const GilReleased released;
            done = pool.trim(why);
        }
        if (!done) fail(why, "trim");
    }

  private:
    resources::DriverPool& driver_pool() const {
        return static_cast<resources::DriverPool&>(engine());
    }
};

class FixedPoolEngine final : public PlainEngine {
  public:
    FixedPoolEngine(std::shared_ptr<Device> given, nb::handle size)
        : PlainEngine(std::move(given), "FixedPool") {
        const uint64_t bytes = positive(size, "size");
        open([&](SharedDriver driver, CUcontext context, Failure& why) {
            return resources::FixedPool::open(std::move(driver), context, bytes, why);
        });
    }
};

class ArenaEngine final : public PlainEngine {
  public:
    ArenaEngine(std::shared_ptr<Device> given, nb::handle size)
        : PlainEngine(std::move(given), "Arena") {
        const uint64_t bytes = positive(size, "size");
        open([&](SharedDriver driver, CUcontext context, Failure& why) {
            return resources::Arena::open(std::move(driver), context, bytes, why);
        });
    }
};

template <typename Engine>
void bind_sized(nb::module_& module, const char* name) {
    nb::class_<Engine, PlainEngine>(module, name)
        .def(nb::init<std::shared_ptr<Device>, nb::handle>(), nb::arg("device"),
             nb::arg("size").none(),
             nb::sig("def __init__(self, device: Device, size: int) -> None"))
        .def_prop_ro(
            "free_bytes", [](const Engine& self) { return self.engine().free_bytes(); },
            "Bytes of the slab that no block uses.");
}

}  // namespace

void bind_resources(nb::module_& module) {
    nb::class_<PlainEngine, NativeResource> plain(module, "PlainEngine");
    bind_blocks(plain);
    plain
        .def("close", &PlainEngine::close,
             "Give everything back. Raises ValueError while blocks are in use. Twice is harmless.")
        .def_prop_ro(
            "device", [](const PlainEngine& self) { return self.device(); },
            nb::for_getter(nb::sig("def device(self) -> object")))
        .def_prop_ro("live_blocks",
                     [](const PlainEngine& self) { return self.engine().live_blocks(); })
        .def_prop_ro(
            "live_bytes", [](const PlainEngine& self) { return self.engine().live_bytes(); },
            "Bytes asked for and not freed.")
        .def_prop_ro(
            "reserved_bytes",
            [](const PlainEngine& self) { return self.engine().reserved_bytes(); },
            "Bytes taken from the driver.");
    nb::class_<DirectEngine, PlainEngine>(module, "DirectEngine")
        .def(nb::init<std::shared_ptr<Device>>(), nb::arg("device"));
    nb::class_<DriverPoolEngine, PlainEngine>(module, "DriverPoolEngine")
        .def(nb::init<std::shared_ptr<Device>, bool, std::optional<uint64_t>>(), nb::arg("device"),
             nb::arg("shared"), nb::arg("release_threshold").none())
        .def_prop_ro("release_threshold", &DriverPoolEngine::release_threshold,
                     "Unused bytes that the driver's pool keeps when it may give memory back.")
        .def("trim", &DriverPoolEngine::trim, "Give unused memory back to the driver.");
    bind_sized<FixedPoolEngine>(module, "FixedPoolEngine");
    bind_sized<ArenaEngine>(module, "ArenaEngine");
}

}  // namespace vramkit
