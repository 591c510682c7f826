// Objects of the simulated machine, the order between streams, and the checker's view of both.
#include "sim/machine/machine.h"

#include <algorithm>
#include <unordered_set>

namespace vramkit::sim {
namespace {

// Older writes to a word are forgotten: a wait that one of them ends is then ordered after fewer.
constexpr std::size_t kValueWritesKept = 64;

}  // namespace

std::shared_ptr<Machine> Machine::make(Settings settings, std::string& error) {
    std::shared_ptr<Machine> machine(new Machine(std::move(settings)));
    const Settings& given = machine->settings;
    machine->space_ =
        Space::make(given.data, given.devices, given.capacity, given.profile.granularity, error);
    if (machine->space_ == nullptr) return nullptr;
    machine->space_->managed().configure(given.profile.managed);
    machine->core_ = std::make_unique<Core>(given.profile, given.devices, *machine);
    if (!given.card.empty()) {
        machine->card = Card::attach(given, error);
        if (machine->card == nullptr) return nullptr;
        machine->space_->share(*machine->card);
        machine->core_->share(*machine->card);
    }
    for (std::size_t i = 0; i < kCalls; ++i) {
        machine->cost_index[i] = Profile::call_index(kCallNames[i].base);
    }
    machine->devices.resize(given.devices);
    return machine;
}

Machine::~Machine() = default;

Context* Machine::find(CUcontext handle) {
    auto* context = reinterpret_cast<Context*>(handle);
    if (contexts_.contains(context)) return context;
    for (const DeviceState& device : devices) {
        if (device.primary.get() == context && device.primary_references > 0) return context;
    }
    return nullptr;
}

std::shared_ptr<Stream> Machine::find_stream(CUstream handle) {
    const auto it = streams_.find(reinterpret_cast<Stream*>(handle));
    return it == streams_.end() ? nullptr : it->second;
}

Event* Machine::find(CUevent handle) {
    auto* event = reinterpret_cast<Event*>(handle);
    return events_.contains(event) ? event : nullptr;
}

Module* Machine::find(CUmodule handle) {
    auto* module = reinterpret_cast<Module*>(handle);
    return modules_.contains(module) ? module : nullptr;
}

Function* Machine::find(CUfunction handle) {
    auto* function = reinterpret_cast<Function*>(handle);
    return functions_.contains(function) ? function : nullptr;
}

Context* Machine::make_context(int device, unsigned flags) {
    auto context = std::make_unique<Context>();
    context->id = next_context_id_++;
    context->device = device;
    context->flags = flags;
    context->error = devices[device].lost;
    context->legacy = std::make_shared<Stream>();
    context->legacy->id = next_stream_id_++;
    context->legacy->context = context.get();
    checker.open(context->legacy->actor, context->legacy->id);
    Context* made = context.get();
    contexts_.emplace(made, std::move(context));
    return made;
}

Context* Machine::activate_primary(int device) {
    DeviceState& state = devices[device];
    if (state.primary_references++ > 0) return state.primary.get();
    Context* fresh = make_context(device, state.primary_flags);
    fresh->primary = true;
    if (state.primary == nullptr) {
        state.primary = std::move(contexts_.extract(fresh).mapped());
    } else {
        // The handle of a primary context stays the same from life to life.
        Context* kept = state.primary.get();
        *kept = std::move(*fresh);
        kept->legacy->context = kept;
        contexts_.erase(fresh);
    }
    return state.primary.get();
}

void Machine::destroy_context(Context* context, const Site& site) {
    for (const auto& stream : std::vector(context->streams)) {
        if (!stream->destroyed) destroy_stream(stream.get());
    }
    checker.close(context->legacy->actor);
    for (const auto& [thread, stream] : context->per_thread) {
        captures.leave(*stream);
        checker.close(stream->actor);
    }
    std::erase_if(events_, [&](const auto& entry) {
        if (entry.second->context != context) return false;
        if (entry.second->pending != nullptr) entry.second->pending->event = nullptr;
        return true;
    });
    std::erase_if(functions_,
                  [&](const auto& entry) { return entry.second->module->context == context; });
    std::erase_if(modules_, [&](const auto& entry) { return entry.second->context == context; });
    for (const std::uint64_t address : space_->device_blocks_of(context)) {
        const Allocation* block = space_->allocation_at(address);
        release_range(address, block->bytes, block->id, site);
        space_->free(address);
    }
    pools.free_blocks_of(context);
    for (const std::uint64_t address : space_->host_blocks_of(context)) {
        space_->remove_host(address);
    }
    context->per_thread.clear();
    context->streams.clear();
    if (!context->primary) graveyard_.push_back(std::move(contexts_.extract(context).mapped()));
}

void Machine::lose_device(int device, CUresult code) {
    devices[device].lost = code;
    if (devices[device].primary != nullptr) devices[device].primary->error = code;
    for (const auto& [handle, context] : contexts_) {
        if (context->device == device) context->error = code;
    }
    core_->look_at_values();
}

std::shared_ptr<Stream> Machine::make_stream(Context* context, unsigned flags, int priority) {
    auto stream = std::make_shared<Stream>();
    stream->id = next_stream_id_++;
    stream->context = context;
    stream->flags = flags;
    stream->blocking = (flags & CU_STREAM_NON_BLOCKING) == 0;
    stream->priority = priority;
    checker.open(stream->actor, stream->id);
    context->streams.push_back(stream);
    streams_.emplace(stream.get(), stream);
    return stream;
}

void Machine::destroy_stream(Stream* stream) {
    Context* context = stream->context;
    captures.leave(*stream);
    context->retired.join(stream->actor.clock);
    if (stream->blocking) context->retired_blocking.join(stream->actor.clock);
    checker.close(stream->actor);
    stream->destroyed = true;
    if (stream->pending == 0) {
        std::erase_if(context->streams, [&](const auto& each) { return each.get() == stream; });
    }
    streams_.erase(stream);
}

const std::shared_ptr<Stream>& Machine::per_thread_stream(Context* context, std::uint32_t thread) {
    auto& stream = context->per_thread[thread];
    if (stream == nullptr) {
        stream = std::make_shared<Stream>();
        stream->id = next_stream_id_++;
        stream->context = context;
        checker.open(stream->actor, stream->id);
    }
    return stream;
}

Event* Machine::make_event(Context* context, unsigned flags) {
    auto event = std::make_unique<Event>();
    event->context = context;
    event->flags = flags;
    Event* made = event.get();
    events_.emplace(made, std::move(event));
    return made;
}

void Machine::destroy_event(Event* event) {
    if (event->pending != nullptr) event->pending->event = nullptr;
    events_.erase(event);
}

Module* Machine::make_module(Context* context) {
    auto module = std::make_unique<Module>();
    module->context = context;
    Module* made = module.get();
    modules_.emplace(made, std::move(module));
    return made;
}

void Machine::destroy_module(Module* module) {
    std::erase_if(functions_, [&](const auto& entry) { return entry.second->module == module; });
    modules_.erase(module);
}

Function* Machine::function(Module* module, const BuiltinKernel* kernel) {
    for (const auto& [handle, function] : functions_) {
        if (function->module == module && function->kernel == kernel) return handle;
    }
    auto function = std::make_unique<Function>(Function{module, kernel});
    Function* made = function.get();
    functions_.emplace(made, std::move(function));
    return made;
}

std::vector<Stream*> Machine::all_streams(Context* context) {
    std::vector<Stream*> all{context->legacy.get()};
    for (const auto& [thread, stream] : context->per_thread) all.push_back(stream.get());
    for (const auto& stream : context->streams) all.push_back(stream.get());
    return all;
}

std::vector<Operation*> Machine::predecessors(const Stream& stream) {
    Context* context = stream.context;
    const Stream* legacy = context->legacy.get();
    std::vector<Operation*> found;
    if (stream.last != nullptr) found.push_back(stream.last);
    if (&stream == legacy) {
        for (const Stream* other : all_streams(context)) {
            if (other != legacy && other->blocking && other->last != nullptr) {
                found.push_back(other->last);
            }
        }
    } else if (stream.blocking && legacy->last != nullptr) {
        found.push_back(legacy->last);
    }
    return found;
}

void Machine::order(Operation* operation, Stream& stream) {
    for (Operation* earlier : predecessors(stream)) Core::depend(operation, earlier);
    stream.last = operation;
    ++stream.pending;
    ++stream.issued;
}

bool Machine::runs_after(const Stream& stream, const Operation* earlier) {
    const std::vector<Operation*> wanted = predecessors(stream);
    std::vector<const Operation*> open{earlier};
    std::unordered_set<const Operation*> seen{earlier};
    while (!open.empty()) {
        const Operation* operation = open.back();
        open.pop_back();
        if (std::find(wanted.begin(), wanted.end(), operation) != wanted.end()) return true;
        for (const Operation* follower : operation->followers) {
            if (seen.insert(follower).second) open.push_back(follower);
        }
    }
    return false;
}

void Machine::order_for_checker(Stream& stream) {
    if (!settings.checker || stream.capture != nullptr) return;
    Context* context = stream.context;
    Stream* legacy = context->legacy.get();
    if (&stream == legacy) {
        Checker::order_after(stream.actor, context->retired_blocking);
        for (Stream* other : all_streams(context)) {
            if (other != legacy && other->blocking) {
                Checker::order_after(stream.actor, other->actor.clock);
            }
        }
    } else if (stream.blocking) {
        Checker::order_after(stream.actor, legacy->actor.clock);
    }
    checker.issue(stream.actor);
}

void Machine::order_value_for_checker(const Operation& operation) {
    if (!settings.checker) return;
    Actor& actor = operation.stream->actor;
    auto& writes = value_writes[operation.destination];
    if (operation.kind == Kind::write_value) {
        if (writes.size() == kValueWritesKept) writes.pop_front();
        writes.push_back(
            {operation.value, actor.clock, actor.component, actor.clock.at(actor.component)});
        return;
    }
    const auto holds = [&](std::uint64_t value) {
        return condition_holds(value, operation.value, operation.condition, operation.width);
    };
    // A word that satisfies the wait already, by nothing that was recorded, promises no order.
    const std::uint64_t present = value_at(operation.destination, operation.width);
    const auto wrote_present = [&](const ValueWrite& write) { return write.value == present; };
    if (holds(present) && std::none_of(writes.begin(), writes.end(), wrote_present)) return;
    // Any write that satisfies a wait may be the one that ends it: what is ordered before all of
    // them is ordered before what follows the wait. One that was overwritten before the wait is
    // none.
    const auto ends_it = [&](const ValueWrite& write) {
        const auto overwrites = [&](const ValueWrite& later) {
            return &later != &write && later.clock.at(write.component) >= write.time &&
                   actor.clock.at(later.component) >= later.time;
        };
        return holds(write.value) && std::none_of(writes.begin(), writes.end(), overwrites);
    };
    auto write = std::find_if(writes.begin(), writes.end(), ends_it);
    if (write == writes.end()) return;
    Clock before = write->clock;
    for (; write != writes.end(); ++write) {
        if (ends_it(*write)) before.meet(write->clock);
    }
    Checker::order_after(actor, before);
}

}  // namespace vramkit::sim
