// Binds the lab's native player.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/bind.h"
#include "bindings/errors.h"
#include "bindings/gil.h"
#include "bindings/native_resource.h"
#include "lab/player.h"
#include "lab/program.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

constexpr std::chrono::milliseconds kSignalsEvery{20};

// A buffer object whose elements have this type of the array module, held while this lives.
template <typename Element>
class Column {
  public:
    Column(nb::handle object, const char* type, const char* name) {
        if (PyObject_GetBuffer(object.ptr(), &view_, PyBUF_FORMAT | PyBUF_ND) != 0) {
            throw nb::python_error();
        }
        if (view_.ndim != 1 || view_.itemsize != sizeof(Element) || view_.format == nullptr ||
            std::string(view_.format) != type) {
            const std::string text = std::string(name) + " has elements of type '" +
                                     (view_.format == nullptr ? "B" : view_.format) +
                                     "'; they must be of type '" + type + "', in one dimension";
            PyBuffer_Release(&view_);
            throw nb::type_error(text.c_str());
        }
    }
    ~Column() { PyBuffer_Release(&view_); }
    Column(const Column&) = delete;
    Column& operator=(const Column&) = delete;

    std::span<const Element> elements() const {
        return {static_cast<const Element*>(view_.buf),
                static_cast<std::size_t>(view_.len) / sizeof(Element)};
    }

  private:
    Py_buffer view_{};
};

// A program that was checked, as a copy of its own: nobody can change it while it is played.
class LabProgram {
  public:
    LabProgram(nb::handle ops, nb::handle threads, nb::handle what, nb::handle where,
               nb::handle sizes, uint32_t streams, uint32_t events, uint32_t thread_count,
               uint32_t sections, bool in_turns) {
        const Column<uint8_t> all_ops(ops, "B", "ops");
        const Column<uint16_t> all_threads(threads, "H", "threads");
        const Column<int64_t> all_what(what, "q", "what");
        const Column<int32_t> all_where(where, "i", "where");
        const Column<int64_t> all_sizes(sizes, "q", "sizes");
        // The GIL is kept: nobody may write the columns between the check and the copy.
        Failure why;
        std::optional<lab::Program> made = lab::Program::make(
            {all_ops.elements(), all_threads.elements(), all_what.elements(), all_where.elements(),
             all_sizes.elements(), streams, events, thread_count, sections, in_turns},
            why);
        if (!made) throw nb::value_error(why.message.c_str());
        program_ = std::move(*made);
    }

    const lab::Program& program() const { return program_; }

    // Of a thread, for a player in Python: three arrays of type 'I'. The step; what it has to do
    // with other threads, lab::Sync as after * 2 + tells; and which block or event that is about.
    nb::tuple steps(std::size_t thread) const {
        if (thread >= program_.threads.size()) throw nb::index_error("no such thread");
        std::vector<uint32_t> indices, syncs, slots;
        for (const lab::Step& step : program_.threads[thread]) {
            indices.push_back(step.index);
            syncs.push_back(step.sync.after * 2 + step.sync.tells);
            slots.push_back(step.sync.any() ? static_cast<uint32_t>(program_.slot(step)) : 0);
        }
        return nb::make_tuple(bytes(indices), bytes(syncs), bytes(slots));
    }

  private:
    static nb::bytes bytes(const std::vector<uint32_t>& all) {
        return nb::bytes(reinterpret_cast<const char*>(all.data()), all.size() * sizeof(uint32_t));
    }

    lab::Program program_;
};

class LabPlayer {
  public:
    LabPlayer(std::shared_ptr<Device> device, nb::handle resource, nb::handle program,
              uint64_t spin, bool raw_streams, bool measure_memory)
        : device_(std::move(device)),
          resource_owner_(nb::borrow(resource)),
          program_owner_(nb::borrow(program)),
          resource_(nb::cast<NativeResource&>(resource)),
          program_(nb::cast<const LabProgram&>(program).program()),
          settings_{nullptr, reinterpret_cast<CUfunction>(spin), raw_streams, measure_memory} {
        if (resource_.device().get() != device_.get()) {
            throw nb::value_error("the resource is of another device than the one to play on");
        }
    }

    nb::dict run() {
        device_->session().require_own_process();
        failed_step_ = -1;
        Resource& resource = resource_.native();
        check(device_->session().driver(), device_->context(&settings_.context),
              "cuDevicePrimaryCtxRetain");
        lab::Played played;
        lab::Fault fault;
        bool complete = false;
        {
            std::optional<nb::python_error> interrupt;
            std::optional<ContextScope> scope;
            std::unique_ptr<lab::Player> player;
            {
                const GilReleased released;
                scope.emplace(*device_);
                player = std::make_unique<lab::Player>(device_->session().shared_driver(), program_,
                                                       resource, settings_);
                player->start();
            }
            for (bool ended = false; !ended;) {
                {
                    const GilReleased released;
                    ended = player->wait(kSignalsEvery);
                }
                if (!interrupt && PyErr_CheckSignals() != 0) {
                    interrupt.emplace();  // takes it over; the threads are still to be waited for
                    player->stop();
                }
            }
            {
                const GilReleased released;
                complete = player->finish(played, fault);
                player.reset();
                scope.reset();
            }
            if (interrupt) throw std::move(*interrupt);
        }
        if (!complete) raise(fault);
        return result(played);
    }

    // Of the fault that run() raised; -1: there was none, or it came before the first step.
    int64_t failed_step() const { return failed_step_; }

  private:
    [[noreturn]] void raise(const lab::Fault& fault) {
        failed_step_ = fault.step;
        if (fault.method != nullptr) resource_.fail(fault.why, fault.method);
        check(device_->session().driver(), fault.why.code, fault.why.call.data());
        throw std::runtime_error(fault.why.message);
    }

    static nb::dict result(const lab::Played& played) {
        nb::list sections;
        for (std::size_t number = 0; number < played.sections.size(); ++number) {
            const lab::Times& times = played.sections[number];
            nb::dict section;
            section["wall_ns"] = played.walls[number];
            section["allocate_ns"] = times.allocate;
            section["free_ns"] = times.free;
            section["launch_ns"] = times.launch;
            section["wait_ns"] = times.wait;
            section["allocations"] = times.allocations;
            section["frees"] = times.frees;
            section["launches"] = times.launches;
            sections.append(section);
        }
        nb::dict all;
        all["sections"] = sections;
        all["peak_in_use"] = played.peak_in_use;
        all["peak_held"] = played.peak_held;
        all["average_held"] = played.average_held;
        all["end_held"] = played.end_held;
        return all;
    }

    std::shared_ptr<Device> device_;
    nb::object resource_owner_, program_owner_;
    NativeResource& resource_;
    const lab::Program& program_;
    lab::Player::Settings settings_;
    int64_t failed_step_ = -1;
};

}  // namespace

void bind_lab(nb::module_& module) {
    nb::class_<LabProgram>(module, "LabProgram",
                           "A program of vramkit.lab.program, checked. Raises ValueError.")
        .def(
            nb::init<nb::handle, nb::handle, nb::handle, nb::handle, nb::handle, uint32_t, uint32_t,
                     uint32_t, uint32_t, bool>(),
            nb::arg("ops"), nb::arg("threads"), nb::arg("what"), nb::arg("where"), nb::arg("sizes"),
            nb::arg("streams"), nb::arg("events"), nb::arg("thread_count"), nb::arg("sections"),
            nb::arg("in_turns"),
            nb::sig("def __init__(self, ops: object, threads: object, what: object, where: object, "
                    "sizes: object, streams: int, events: int, thread_count: int, sections: int, "
                    "in_turns: bool) -> None"))
        .def("steps", &LabProgram::steps, nb::arg("thread"),
             nb::sig("def steps(self, thread: int) -> tuple[bytes, bytes, bytes]"));
    nb::class_<LabPlayer>(module, "LabPlayer", "One play of a program on a native resource.")
        .def(nb::init<std::shared_ptr<Device>, nb::handle, nb::handle, uint64_t, bool, bool>(),
             nb::arg("device"), nb::arg("resource"), nb::arg("program"), nb::arg("spin"),
             nb::arg("raw_streams"), nb::arg("measure_memory"),
             nb::sig("def __init__(self, device: Device, resource: NativeResource, program: "
                     "LabProgram, spin: int, raw_streams: bool, measure_memory: bool) -> None"))
        .def("run", &LabPlayer::run, nb::sig("def run(self) -> dict[str, typing.Any]"),
             "On threads of its own; Ctrl-C ends it.")
        .def_prop_ro("failed_step", &LabPlayer::failed_step);
}

}  // namespace vramkit
