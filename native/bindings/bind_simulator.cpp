// Binds the controls of the simulated GPU that control.h declares.
#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <type_traits>

#include "base/listeners.h"
#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/gil.h"
#include "bindings/session.h"
#include "bindings/stream.h"
#include "bindings/wait.h"
#include "sim/control.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

// The exports by their names in control.h, looked up in one opened library.
class Controls {
  public:
    explicit Controls(std::shared_ptr<Session> session) : session_(std::move(session)) {
        find(reset_, "simReset");
        find(now_, "simNow");
        find(advance_, "simAdvance");
        find(host_alias_, "simHostAlias");
        find(host_access_, "simHostAccess");
        find(block_alloc_, "simBlockAlloc");
        find(block_free_, "simBlockFree");
        find(block_hold_, "simBlockHold");
        find(block_region_, "simBlockRegion");
        find(rely_on_waits_, "simRelyOnWaits");
        find(settings_, "simSettings");
        find(reports_, "simReports");
        find(clear_reports_, "simClearReports");
        find(reports_left_out_, "simReportsLeftOut");
        find(unsupported_, "simUnsupported");
        find(call_counts_, "simCallCounts");
        find(reset_call_counts_, "simResetCallCounts");
        find(live_objects_, "simLiveObjects");
        find(card_, "simCard");
        find(timeline_start_, "simTimelineStart");
        find(timeline_, "simTimeline");
        find(inject_, "simInject");
        find(clear_faults_, "simClearFaults");
        find(lose_device_, "simLoseDevice");
    }

    void reset(const std::string& settings) {
        session_->require_own_process();
        std::array<char, 1024> reason{};
        int failed;
        {
            const GilReleased released;
            failed = reset_(settings.c_str(), reason.data(), reason.size());
            if (failed == 0) {
                session_->begin_next_epoch();
                announce_reset(session_->call());
            }
        }
        if (failed != 0) throw nb::value_error(reason.data());
    }

    double now() const { return call(now_); }
    bool advance(double nanoseconds) const { return call(advance_, nanoseconds) == 0; }
    uint64_t host_alias(uint64_t address) const {
        return reinterpret_cast<uintptr_t>(call(host_alias_, address));
    }
    void host_access(uint64_t address, size_t bytes, bool write) const {
        call(host_access_, reinterpret_cast<const void*>(address), bytes, write ? 1 : 0);
    }
    void block_alloc(uint64_t address, size_t bytes, nb::handle stream) const {
        call(block_alloc_, address, bytes, stream_handle(stream));
    }
    void block_free(uint64_t address, size_t bytes, nb::handle stream) const {
        call(block_free_, address, bytes, stream_handle(stream));
    }
    void rely_on_waits(bool on) const {
        set_calls_stay_here(on);
        call(rely_on_waits_, on ? 1 : 0);
    }
    void block_hold(uint64_t address, size_t bytes, nb::handle stream) const {
        call(block_hold_, address, bytes, stream_handle(stream));
    }
    void block_region(uint64_t address, size_t bytes) const { call(block_region_, address, bytes); }
    nb::bytes settings() const { return text(settings_); }
    nb::bytes reports() const { return text(reports_); }
    nb::bytes unsupported() const { return text(unsupported_); }
    uint64_t reports_left_out() const { return call(reports_left_out_); }
    nb::bytes call_counts() const { return text(call_counts_); }
    nb::bytes live_objects() const { return text(live_objects_); }
    nb::bytes card() const { return text(card_); }
    nb::bytes timeline() const { return text(timeline_); }
    void clear_reports() const { call(clear_reports_); }
    void reset_call_counts() const { call(reset_call_counts_); }
    void timeline_start(size_t limit) const { call(timeline_start_, limit); }
    bool inject(const std::string& glob, uint64_t nth, uint64_t times, int code,
                double delay_ns) const {
        return call(inject_, glob.c_str(), nth, times, code, delay_ns) == 0;
    }
    void clear_faults() const { call(clear_faults_); }
    bool lose_device(int ordinal, int code) const { return call(lose_device_, ordinal, code) == 0; }

  private:
    template <typename Function>
    void find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(session_->driver().symbol(name));
        if (function == nullptr) {
            const std::string message = session_->driver().path() + " has no " + name;
            throw nb::value_error(message.c_str());
        }
    }

    // Raises ClosedError in a forked child.
    template <typename Function, typename... Arguments>
    std::invoke_result_t<Function, Arguments...> call(Function function,
                                                      Arguments... arguments) const {
        session_->require_own_process();
        const GilReleased released;
        return function(arguments...);
    }

    // The text may grow between the calls for its length and its content, so repeat until it fits.
    nb::bytes text(decltype(&simReports) function) const {
        session_->require_own_process();
        std::string buffer(4096, '\0');
        {
            const GilReleased released;
            size_t needed = function(buffer.data(), buffer.size());
            while (needed >= buffer.size()) {
                buffer.resize(needed + needed / 4 + 1);
                needed = function(buffer.data(), buffer.size());
            }
            buffer.resize(needed);
        }
        return nb::bytes(buffer.data(), buffer.size());
    }

    std::shared_ptr<Session> session_;
    decltype(&simReset) reset_;
    decltype(&simNow) now_;
    decltype(&simAdvance) advance_;
    decltype(&simHostAlias) host_alias_;
    decltype(&simHostAccess) host_access_;
    decltype(&simBlockAlloc) block_alloc_;
    decltype(&simBlockFree) block_free_;
    decltype(&simBlockHold) block_hold_;
    decltype(&simBlockRegion) block_region_;
    decltype(&simRelyOnWaits) rely_on_waits_;
    decltype(&simSettings) settings_;
    decltype(&simReports) reports_;
    decltype(&simClearReports) clear_reports_;
    decltype(&simReportsLeftOut) reports_left_out_;
    decltype(&simUnsupported) unsupported_;
    decltype(&simCallCounts) call_counts_;
    decltype(&simResetCallCounts) reset_call_counts_;
    decltype(&simLiveObjects) live_objects_;
    decltype(&simCard) card_;
    decltype(&simTimelineStart) timeline_start_;
    decltype(&simTimeline) timeline_;
    decltype(&simInject) inject_;
    decltype(&simClearFaults) clear_faults_;
    decltype(&simLoseDevice) lose_device_;
};

}  // namespace

void bind_simulator(nb::module_& module) {
    nb::class_<Controls> controls(module, "Controls",
                                  "The controls of a simulated GPU; texts are JSON.");
    controls.def(nb::init<std::shared_ptr<Session>>(), nb::arg("session"))
        .def("now", &Controls::now, "Nanoseconds on the calling thread's host clock.")
        .def("settings", &Controls::settings)
        .def("reports", &Controls::reports)
        .def("clear_reports", &Controls::clear_reports)
        .def("reports_left_out", &Controls::reports_left_out)
        .def("unsupported", &Controls::unsupported)
        .def("call_counts", &Controls::call_counts)
        .def("reset_call_counts", &Controls::reset_call_counts)
        .def("live_objects", &Controls::live_objects)
        .def("card", &Controls::card)
        .def("timeline", &Controls::timeline)
        .def("clear_faults", &Controls::clear_faults);
    def(controls, "reset", &Controls::reset, nb::arg("settings"));
    def(controls, "advance", &Controls::advance, nb::arg("nanoseconds"), "False: refused.");
    def(controls, "host_alias", &Controls::host_alias, nb::arg("address"),
        nb::sig("def host_alias(self, address: int) -> int"), "0 where there is none.");
    def(controls, "host_access", &Controls::host_access, nb::arg("address"), nb::arg("nbytes"),
        nb::arg("write"),
        nb::sig("def host_access(self, address: int, nbytes: int, write: bool) -> None"));
    def(controls, "block_alloc", &Controls::block_alloc, nb::arg("address"), nb::arg("nbytes"),
        nb::arg("stream"),
        nb::sig("def block_alloc(self, address: int, nbytes: int, stream: object) -> None"));
    def(controls, "block_free", &Controls::block_free, nb::arg("address"), nb::arg("nbytes"),
        nb::arg("stream"),
        nb::sig("def block_free(self, address: int, nbytes: int, stream: object) -> None"));
    def(controls, "block_hold", &Controls::block_hold, nb::arg("address"), nb::arg("nbytes"),
        nb::arg("stream"),
        nb::sig("def block_hold(self, address: int, nbytes: int, stream: object) -> None"));
    def(controls, "block_region", &Controls::block_region, nb::arg("address"), nb::arg("nbytes"),
        nb::sig("def block_region(self, address: int, nbytes: int) -> None"));
    def(controls, "rely_on_waits", &Controls::rely_on_waits, nb::arg("on"));
    def(controls, "timeline_start", &Controls::timeline_start, nb::arg("limit"));
    def(controls, "inject", &Controls::inject, nb::arg("glob"), nb::arg("nth"), nb::arg("times"),
        nb::arg("code"), nb::arg("delay_ns"),
        nb::sig("def inject(self, glob: str, nth: int, times: int, code: int, delay_ns: float) "
                "-> bool"));
    def(controls, "lose_device", &Controls::lose_device, nb::arg("ordinal"), nb::arg("code"),
        nb::sig("def lose_device(self, ordinal: int, code: int) -> bool"));
}

}  // namespace vramkit
