// Calls Python in the middle of a copy.
#include "bindings/python_expander.h"

#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>
#include <utility>

#include "bindings/in_python.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// While Python exits it is not released: the process ends with it.
struct Release {
    void operator()(PyObject* object) const {
        in_python([&] { Py_DECREF(object); });
    }
};

}  // namespace

PythonExpander::PythonExpander(nb::object object) : object_(object.release().ptr(), Release()) {}

template <typename Call>
bool PythonExpander::calls(const Call& call) {
    bool done = false;
    in_python([&] {
        try {
            call(nb::borrow(object_.get()));
            done = true;
        } catch (nb::python_error&) {
            if (raised_ == nullptr) raised_ = std::current_exception();  // the first is the cause
        }
    });
    return done;
}

bool PythonExpander::expand(const weights::StagedChunk& staged, Failure& why) {
    const bool done = calls([&](const nb::object& object) { object.attr("expand")(staged); });
    if (!done) why = Failure::closed("what expands the weights of group " + staged.group);
    return done;
}

void PythonExpander::give_up(const std::string& group, const Failure& why) {
    const std::string text = why.call.empty()
                                 ? why.message
                                 : std::string(why.call) + " returned " + std::to_string(why.code);
    calls([&](const nb::object& object) { object.attr("give_up")(group, text); });
}

void PythonExpander::rethrow() {
    if (raised_ != nullptr) std::rethrow_exception(std::exchange(raised_, nullptr));
}

void bind_staged_chunk(nb::module_& module) {
    using weights::StagedChunk;
    nb::class_<StagedChunk>(module, "StagedChunk",
                            "A chunk of a group whose copy to staging memory has been issued: the "
                            "`stored` bytes there become its `nbytes` at the destination.")
        .def(
            "__init__",
            [](StagedChunk* made, std::string group, std::uint64_t first_byte, std::uint64_t nbytes,
               std::uint64_t staging, std::uint64_t stored, std::uint64_t destination,
               std::uintptr_t stream) {
                weights::Chunk chunk;
                chunk.first_byte = first_byte, chunk.bytes = nbytes, chunk.stored = stored;
                new (made) StagedChunk{std::move(group), chunk, staging, destination,
                                       reinterpret_cast<CUstream>(stream)};
            },
            nb::kw_only(), nb::arg("group"), nb::arg("first_byte"), nb::arg("nbytes"),
            nb::arg("staging"), nb::arg("stored"), nb::arg("destination"), nb::arg("stream"))
        .def_ro("group", &StagedChunk::group)
        .def_prop_ro("first_byte", [](const StagedChunk& self) { return self.chunk.first_byte; })
        .def_prop_ro("nbytes", [](const StagedChunk& self) { return self.chunk.bytes; })
        .def_ro("staging", &StagedChunk::staging)
        .def_prop_ro("stored", [](const StagedChunk& self) { return self.chunk.stored; })
        .def_ro("destination", &StagedChunk::destination)
        .def_prop_ro("stream", [](const StagedChunk& self) {
            return reinterpret_cast<std::uintptr_t>(self.stream);
        });
}

}  // namespace vramkit
