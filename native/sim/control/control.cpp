// The controls of the simulated GPU.
#include "sim/control.h"

#include <algorithm>
#include <cstring>

#include "sim/api/call.h"
#include "sim/checker/reports.h"

using namespace vramkit::sim;
using vramkit::Json;

namespace {

// The state of a thread that only looks, without making a driver call.
class Look {
  public:
    Look() : lock_(simulation().lock) {
        machine_ = ensure_machine(lock_, error_) != nullptr ? simulation().machine : nullptr;
    }
    Machine* machine() { return machine_.get(); }
    // Why there is none.
    const std::string& error() const { return error_; }

  private:
    std::unique_lock<std::mutex> lock_;
    std::shared_ptr<Machine> machine_;
    std::string error_;
};

size_t give(const std::string& text, char* buffer, size_t capacity) {
    if (buffer != nullptr && capacity > 0) {
        const size_t bytes = std::min(text.size(), capacity - 1);
        std::memcpy(buffer, text.data(), bytes);
        buffer[bytes] = '\0';
    }
    return text.size();
}

template <class Write>
size_t give_json(char* buffer, size_t capacity, Write write) {
    Look look;
    Json json;
    if (look.machine() != nullptr) {
        write(json, *look.machine());
    } else {
        json.begin_object().field("error", std::string_view(look.error())).end_object();
    }
    return give(json.text(), buffer, capacity);
}

std::string_view engine_name(const Span& span) {
    switch (span.lane) {
        case Lane::host_to_device:
            return "host to device";
        case Lane::device_to_host:
            return "device to host";
        case Lane::on_device:
            return "on device";
        case Lane::compute:
            return "compute";
        case Lane::none:
            break;
    }
    return "none";
}

void tell_block(CallId id, void* site, std::uint64_t address, std::size_t bytes, void* stream,
                Machine::Told told) {
    // A pool may serve a host function, and a thread without a context.
    Call call(id, site, Needs::stream);
    std::vector<Piece> pieces;
    if (call.refused() != CUDA_SUCCESS || !call.machine().settings.checker ||
        !call.machine().space().resolve(address, bytes, pieces)) {
        return;
    }
    std::shared_ptr<Stream> found;
    if (call.find(static_cast<CUstream>(stream), found, Purpose::ask) != CUDA_SUCCESS) {
        found = nullptr;
    } else if (found == found->context->legacy) {
        // A pool's legacy stream is that of its card, also where another card's context is current.
        const auto [begin, mapping] = call.machine().space().mapping_around(address);
        const int device = mapping != nullptr ? mapping->physical->device : kNowhere;
        if (device >= 0 && device != found->context->device) {
            const DeviceState& card = call.machine().devices[device];
            if (card.primary_references > 0) found = card.primary->legacy;
        }
    }
    call.machine().block_told(found.get(), address, bytes, told, call.site());
}

}  // namespace

SIM_EXPORT int simReset(const char* settings, char* error, size_t capacity) {
    const std::string wrong = reset(settings != nullptr ? settings : "");
    give(wrong, error, capacity);
    return wrong.empty() ? 0 : 1;
}

SIM_EXPORT double simNow(void) {
    // A look, not a call: it counts and costs nothing.
    const ThreadState& thread = thread_state();
    Look look;
    if (look.machine() == nullptr) return 0;
    if (look.machine()->settings.wall_clock) return wall_now(*look.machine());
    const bool current = thread.generation == simulation().generation;
    return std::max(current ? thread.host : 0, look.machine()->core().now());
}

SIM_EXPORT int simAdvance(double nanoseconds) {
    ThreadState& thread = thread_state();
    Look look;
    // Written so that it refuses what is not a number.
    if (look.machine() == nullptr || look.machine()->settings.wall_clock ||
        !(nanoseconds >= 0 && nanoseconds <= SIM_MOST_ADVANCE_NS)) {
        return 1;
    }
    if (thread.generation != simulation().generation) {
        thread = ThreadState{};
        thread.generation = simulation().generation;
    }
    thread.host = std::max(thread.host, look.machine()->core().now()) + nanoseconds;
    return 0;
}

SIM_EXPORT void* simHostAlias(uint64_t address) {
    Look look;
    if (look.machine() == nullptr) return nullptr;
    std::vector<Piece> pieces;
    if (!look.machine()->space().resolve(address, 1, pieces)) return nullptr;
    return pieces[0].data;
}

SIM_EXPORT void simHostAccess(const void* pointer, size_t bytes, int write) {
    Call call(CallId::simHostAccess, SIM_RETURN_ADDRESS, Needs::stream);
    if (call.refused() != CUDA_SUCCESS) return;
    const Deferred* point = call.thread().host_function;
    if (point != nullptr && point->generation != call.thread().generation) point = nullptr;
    const auto device = call.machine().space().address_of_alias(pointer);
    const std::uint64_t address = device.value_or(reinterpret_cast<std::uint64_t>(pointer));
    call.machine().host_touch(address, bytes, write != 0, call.site(), point);
    call.spend(call.machine().host_pages_ns(address, bytes, write != 0));
}

SIM_EXPORT void simBlockAlloc(uint64_t address, size_t bytes, void* stream) {
    tell_block(CallId::simBlockAlloc, SIM_RETURN_ADDRESS, address, bytes, stream,
               Machine::Told::allocated);
}

SIM_EXPORT void simBlockFree(uint64_t address, size_t bytes, void* stream) {
    tell_block(CallId::simBlockFree, SIM_RETURN_ADDRESS, address, bytes, stream,
               Machine::Told::freed);
}

SIM_EXPORT void simBlockHold(uint64_t address, size_t bytes, void* stream) {
    tell_block(CallId::simBlockHold, SIM_RETURN_ADDRESS, address, bytes, stream,
               Machine::Told::held);
}

SIM_EXPORT void simBlockRegion(uint64_t address, size_t bytes) {
    Call call(CallId::simBlockRegion, SIM_RETURN_ADDRESS, Needs::stream);
    if (call.refused() != CUDA_SUCCESS || !call.machine().settings.checker || bytes == 0) return;
    call.machine().region_told(address, bytes, call.site());
}

SIM_EXPORT void simRelyOnWaits(int on) {
    // Of the thread, not of the machine: no call, and no lock.
    thread_state().relies_on_waits = on != 0;
}

SIM_EXPORT size_t simSettings(char* buffer, size_t capacity) {
    return give_json(buffer, capacity, [](Json& json, const Machine& machine) {
        write_settings(json, machine.settings);
    });
}

SIM_EXPORT size_t simReports(char* buffer, size_t capacity) {
    return give_json(buffer, capacity,
                     [](Json& json, const Machine& machine) { write_reports(json, machine); });
}

SIM_EXPORT void simClearReports(void) {
    Look look;
    if (look.machine() != nullptr) look.machine()->checker.reports.clear();
}

SIM_EXPORT uint64_t simReportsLeftOut(void) {
    Look look;
    return look.machine() != nullptr ? look.machine()->checker.reports.left_out() : 0;
}

SIM_EXPORT size_t simUnsupported(char* buffer, size_t capacity) {
    return give_json(buffer, capacity,
                     [](Json& json, const Machine& machine) { write_unsupported(json, machine); });
}

SIM_EXPORT size_t simCallCounts(char* buffer, size_t capacity) {
    return give_json(buffer, capacity, [](Json& json, const Machine& machine) {
        json.begin_object();
        for (std::size_t i = 0; i < kCalls; ++i) {
            if (machine.counts[i] > 0) json.field(kCallNames[i].symbol, machine.counts[i]);
        }
        json.end_object();
    });
}

SIM_EXPORT void simResetCallCounts(void) {
    Look look;
    if (look.machine() != nullptr) look.machine()->counts.fill(0);
}

SIM_EXPORT size_t simLiveObjects(char* buffer, size_t capacity) {
    return give_json(buffer, capacity, [](Json& json, Machine& machine) {
        Space& space = machine.space();
        json.begin_object()
            .field("contexts", std::uint64_t{machine.contexts()})
            .field("streams", std::uint64_t{machine.streams()})
            .field("events", std::uint64_t{machine.events()})
            .field("device", std::uint64_t{space.allocations()})
            .field("pinned", std::uint64_t{space.host_blocks(false)})
            .field("registered", std::uint64_t{space.host_blocks(true)})
            .field("reservations", std::uint64_t{space.reservations()})
            .field("handles", std::uint64_t{machine.handles.size()})
            .field("mappings", std::uint64_t{space.vmm_mappings()})
            .field("modules", std::uint64_t{machine.modules()})
            .field("pools", std::uint64_t{machine.pools.created()})
            .field("pool_blocks", std::uint64_t{machine.pools.blocks()})
            .field("graphs", std::uint64_t{machine.captures.graphs()})
            .field("graph_executables", std::uint64_t{machine.captures.executables()})
            .field("user_objects", std::uint64_t{machine.user_objects.live()})
            .end_object();
    });
}

SIM_EXPORT size_t simCard(char* buffer, size_t capacity) {
    return give_json(buffer, capacity, [](Json& json, Machine& machine) {
        if (machine.card == nullptr) {
            json.null();
            return;
        }
        Card& card = *machine.card;
        json.begin_object()
            .field("name", std::string_view(card.name()))
            .field("path", std::string_view(card.path()))
            .field("capacity", machine.space().capacity())
            .key("processes")
            .begin_array();
        for (const Card::Share& share : card.shares()) {
            json.begin_object().field("pid", share.pid).field("bytes", share.bytes).end_object();
        }
        json.end_array().end_object();
    });
}

SIM_EXPORT void simTimelineStart(size_t limit) {
    Look look;
    if (look.machine() == nullptr) return;
    look.machine()->timeline_limit = limit;
    look.machine()->timeline.clear();
}

SIM_EXPORT size_t simTimeline(char* buffer, size_t capacity) {
    const double now = simNow();
    return give_json(buffer, capacity, [now](Json& json, Machine& machine) {
        while (machine.core().step(now)) {
        }
        std::vector<Span> spans(machine.timeline.begin(), machine.timeline.end());
        std::stable_sort(spans.begin(), spans.end(),
                         [](const Span& a, const Span& b) { return a.start < b.start; });
        json.begin_array();
        for (const Span& span : spans) {
            json.begin_object()
                .field("name", span.kernel.empty() ? kCallNames[span.call].base : span.kernel)
                .field("engine", engine_name(span))
                .field("device", span.device)
                .field("stream", span.stream)
                .field("start_ns", span.start)
                .field("end_ns", span.end)
                .field("bytes", span.bytes)
                .end_object();
        }
        json.end_array();
    });
}

SIM_EXPORT int simInject(const char* glob, uint64_t nth, uint64_t times, int code,
                         double delay_ns) {
    Look look;
    if (look.machine() == nullptr || glob == nullptr ||
        std::none_of(kCallNames.begin(), kCallNames.end(),
                     [&](const CallName& call) { return names(glob, call); }) ||
        nth == 0 || times == 0 || !(delay_ns >= 0)) {
        return 1;
    }
    look.machine()->faults.add(Fault{glob, nth - 1, times, static_cast<CUresult>(code), delay_ns});
    return 0;
}

SIM_EXPORT void simClearFaults(void) {
    Look look;
    if (look.machine() != nullptr) look.machine()->faults.clear();
}

SIM_EXPORT int simLoseDevice(int ordinal, int code) {
    Look look;
    Machine* machine = look.machine();
    if (machine == nullptr || ordinal < 0 || ordinal >= machine->settings.devices || code == 0) {
        return 1;
    }
    machine->lose_device(ordinal, static_cast<CUresult>(code));
    return 0;
}
