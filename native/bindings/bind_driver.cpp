// Binds the opened driver.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>

#include <tuple>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/session.h"
#include "driver/shared.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// The session, or the sentence that says why there is none: Python words the exception.
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
    CUresult result;
    {
        const GilReleased released;
        result = session.call().cuInit(0);
    }
    check(session.driver(), result, "cuInit");
}

int version(const Session& session) {
    int number = 0;
    check(session.driver(), session.call().cuDriverGetVersion(&number), "cuDriverGetVersion");
    return number;
}

int device_count(const Session& session) {
    int count = 0;
    check(session.driver(), session.call().cuDeviceGetCount(&count), "cuDeviceGetCount");
    return count;
}

}  // namespace

void bind_driver(nb::module_& module) {
    nb::class_<Session>(module, "Session", "One opened libcuda.so.1.")
        .def_prop_ro("path", [](const Session& session) { return session.driver().path(); })
        .def_prop_ro("simulated",
                     [](const Session& session) { return session.driver().simulated(); })
        .def_prop_ro("epoch", &Session::epoch, "How often the simulated GPU was reset.")
        .def("initialise", &initialise, "cuInit.")
        .def("version", &version, "13000 for CUDA 13.0.")
        .def("device_count", &device_count);
    module.def("open_cuda", &open_cuda,
               "Open NVIDIA's driver; a sentence that says why not where it cannot be.");
    module.def("open_path", &open_path, nb::arg("path"),
               "Open the library at this path; a sentence that says why not where it cannot be.");
    module.def(
        "error_name",
        [](int code) {
            const std::string_view meaning = error_meaning(static_cast<CUresult>(code));
            return std::tuple(error_name(static_cast<CUresult>(code)), std::string(meaning));
        },
        nb::arg("code"), "Name and meaning of a result code.");
}

}  // namespace vramkit
