// Binds the cases of the lab in which two programs share a simulated card.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>

#include <string>
#include <tuple>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/device.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/native_resource.h"
#include "lab/sharing_cases.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

void require_positive(int given, const char* name) {
    if (given < 1) refuse_value(nb::int_(given), name, "an integer from 1");
}

// Opens the two programs and measures them, without the GIL. Raises what fails.
template <typename Measure>
void with_two_programs(Device& device, uint64_t add, unsigned blocks, const std::string& mode,
                       uint64_t program, uint64_t more, const char* call, const Measure& measure) {
    const Session& session = device.session();
    session.require_own_process();
    const auto known = lab::mode_of(mode);
    if (!known) {
        std::string names;
        for (const std::string_view name : lab::kModeNames) {
            names += (names.empty() ? "" : ", ") + std::string(name);
        }
        throw nb::value_error(("mode is '" + mode + "'; it may be " + names).c_str());
    }
    Failure why;
    bool done = false;
    {
        const GilReleased released;
        const ContextScope scope(device);
        CUcontext context = nullptr;
        if (!failed(scope.result(), scope.symbol(), why) &&
            !failed(device.context(&context), "cuDevicePrimaryCtxRetain", why)) {
            const lab::AddingCard card{session.driver(), context, device.ordinal(),
                                       reinterpret_cast<CUfunction>(add), blocks};
            const auto programs = lab::TwoPrograms::open(card, *known, program, more, why);
            done = programs != nullptr && measure(*programs, why);
        }
    }
    if (!done) raise_failure(session.driver(), why, call);
}

std::tuple<double, double, double> one_switch(Device& device, uint64_t add, unsigned blocks,
                                              const std::string& mode, uint64_t program,
                                              uint64_t more, int number, bool empty) {
    require_positive(number, "number");
    lab::Switch last;
    with_two_programs(device, add, blocks, mode, program, more, "sharing_switch",
                      [&](lab::TwoPrograms& programs, Failure& why) {
                          for (int i = 0; i + 1 < number; ++i) {
                              lab::Switch before;
                              if (!lab::one_switch(programs, i % 2, false, before, why)) {
                                  return false;
                              }
                          }
                          return lab::one_switch(programs, (number - 1) % 2, empty, last, why);
                      });
    return {last.launch, last.begin, last.end};
}

std::pair<uint64_t, double> take_turns(Device& device, uint64_t add, unsigned blocks,
                                       const std::string& mode, uint64_t program, uint64_t more,
                                       int turns, double quantum, int window) {
    require_positive(turns, "turns");
    require_positive(window, "window");
    lab::Turns taken;
    with_two_programs(device, add, blocks, mode, program, more, "sharing_turns",
                      [&](lab::TwoPrograms& programs, Failure& why) {
                          return lab::take_turns(programs, turns, quantum, window, taken, why);
                      });
    return {taken.launches, taken.seconds};
}

std::pair<uint64_t, uint64_t> program_bytes(uint64_t program) {
    return {3 * lab::array_bytes(program), lab::footprint(program)};
}

}  // namespace

void bind_sharing_cases(nb::module_& module) {
    def(module, "sharing_bytes", &program_bytes, nb::arg("program"),
        "Of a program of so many bytes: those that a launch uses, and those that it takes of the "
        "card.");
    def(module, "sharing_switch", &one_switch, nb::arg("device"), nb::arg("add"), nb::arg("blocks"),
        nb::arg("mode"), nb::arg("program"), nb::arg("more"), nb::arg("number"), nb::arg("empty"),
        "Seconds of a launch, and those at which switch `number` (from 1) and the first launch "
        "after it begin and end.");
    def(module, "sharing_turns", &take_turns, nb::arg("device"), nb::arg("add"), nb::arg("blocks"),
        nb::arg("mode"), nb::arg("program"), nb::arg("more"), nb::arg("turns"), nb::arg("quantum"),
        nb::arg("window"), "Launches in so many turns, and seconds.");
}

}  // namespace vramkit
