// Binds the opened driver.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <tuple>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/invoke.h"
#include "bindings/owner.h"
#include "bindings/session.h"
#include "driver/shared.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// The session, or a sentence that says why there is none: Python raises the exception.
using Found = std::variant<std::shared_ptr<Session>, std::string>;

Found found(Shared opened) {
    if (auto* error = std::get_if<OpenError>(&opened)) return std::move(error->message);
    return std::make_shared<Session>(std::get<SharedDriver>(std::move(opened)).driver);
}

Found open_cuda() {
    const GilReleased released;
    return found(share_cuda());
}

Found open_path(const std::string& path) {
    const GilReleased released;
    return found(share_path(path));
}

void initialise(const Session& session) {
    session.require_own_process();
    CUresult result;
    {
        const GilReleased released;
        result = session.call().cuInit(0);
    }
    check(session.driver(), result, "cuInit");
}

int version(const Session& session) {
    int number = 0;
    VRAMKIT_ASK(session, cuDriverGetVersion, &number);
    return number;
}

int device_count(const Session& session) {
    int count = 0;
    VRAMKIT_ASK(session, cuDeviceGetCount, &count);
    return count;
}

std::tuple<std::string, std::string> name_and_meaning(int code) {
    const auto result = static_cast<CUresult>(code);
    return {error_name(result), std::string(error_meaning(result))};
}

}  // namespace

void bind_driver(nb::module_& module) {
    nb::class_<Session> session(module, "Session", "One opened libcuda.so.1.");
    session.def_prop_ro("path", [](const Session& self) { return self.driver().path(); })
        .def_prop_ro("simulated", &Session::simulated)
        .def_prop_ro("epoch", &Session::epoch, "How often the simulated GPU was reset.")
        .def_prop_ro("forked", &Session::forked,
                     "True in a forked child of the process that opened it.")
        .def(
            "require_own_process", [](const Session& self) { self.require_own_process(); },
            "Raises ClosedError in a forked child.")
        .def("initialise", &initialise, "cuInit.")
        .def("version", &version, "13000 for CUDA 13.0.")
        .def("device_count", &device_count);
    refuse_copies(session);
    module.def("open_cuda", &open_cuda,
               "Open NVIDIA's driver; returns a sentence with the reason if that fails.");
    def(module, "open_path", &open_path, nb::arg("path"),
        "Open the library at this path; returns a sentence with the reason if that fails.");
    def(module, "error_name", &name_and_meaning, nb::arg("code"),
        "Name and meaning of a result code.");
}

}  // namespace vramkit
