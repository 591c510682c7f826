// Objects of the simulated machine, the order between streams, and the checker's view of both.
#include "sim/machine.h"

#include <algorithm>

namespace vramkit::sim {

std::shared_ptr<Machine> Machine::make(Settings settings, std::string& error) {
    std::shared_ptr<Machine> machine(new Machine(std::move(settings)));
    const Settings& given = machine->settings;
    machine->space_ =
        Space::make(given.data, given.devices, given.capacity, given.profile.granularity, error);
    if (machine->space_ == nullptr) return nullptr;
    machine->core_ = std::make_unique<Core>(given.profile, given.devices, *machine);
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
    for (const auto& [thread, stream] : context->per_thread) checker.close(stream->actor);
    std::erase_if(events_, [&](const auto& entry) {
        if (entry.second->context != context) return false;
        if (entry.second->pending != nullptr) entry.second->pending->event = nullptr;
        return true;
    });
    std::erase_if(functions_,
                  [&](const auto& entry) { return entry.second->module->context == context; });
    std::erase_if(modules_, [&](const auto& entry) { return entry.second->context == context; });
    for (const std::uint64_t address : space_->device_blocks_of(context)) {
        release_range(address, space_->allocation_at(address)->bytes, true, site);
        space_->free(address);
    }
    for (const std::uint64_t address : space_->host_blocks_of(context)) {
        space_->remove_host(address);
    }
    if (context->primary) {
        context->legacy.reset();
        context->per_thread.clear();
        context->streams.clear();
    } else {
        contexts_.erase(context);
    }
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

void Machine::order(Operation* operation, Stream& stream) {
    Context* context = stream.context;
    Stream* legacy = context->legacy.get();
    if (stream.last != nullptr) Core::depend(operation, stream.last);
    if (&stream == legacy) {
        for (Stream* other : all_streams(context)) {
            if (other != legacy && other->blocking && other->last != nullptr) {
                Core::depend(operation, other->last);
            }
        }
    } else if (stream.blocking && legacy->last != nullptr) {
        Core::depend(operation, legacy->last);
    }
    stream.last = operation;
    ++stream.pending;
}

void Machine::order_for_checker(Stream& stream) {
    if (!settings.checker) return;
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

namespace {

Range range_of(const Piece& piece) {
    return Range{piece.physical, piece.physical + piece.bytes, piece.address - piece.physical};
}

}  // namespace

bool Machine::touch(Stream& stream, std::uint64_t address, std::uint64_t bytes, Use use,
                    const Site& site, bool* idle) {
    if (!settings.checker || bytes == 0) return true;
    thread_local std::vector<Piece> pieces;
    pieces.clear();
    const bool mapped = space_->resolve(address, bytes, pieces);
    for (const Piece& piece : pieces) {
        const bool free = checker.use(stream.actor, range_of(piece), use, site);
        if (idle != nullptr) *idle = *idle && free;
    }
    return mapped;
}

void Machine::host_touch(std::uint64_t address, std::uint64_t bytes, bool write, const Site& site) {
    if (!settings.checker || bytes == 0) return;
    std::vector<Piece> pieces;
    space_->resolve(address, bytes, pieces);
    for (const Piece& piece : pieces) checker.host_use(range_of(piece), write, site);
}

void Machine::release_range(std::uint64_t address, std::uint64_t bytes, bool implicit,
                            const Site& site) {
    if (!settings.checker) return;
    std::vector<Piece> pieces;
    space_->resolve(address, bytes, pieces);
    for (const Piece& piece : pieces) {
        checker.released(range_of(piece), implicit, site);
        // The bytes of a block of cuMemAlloc or of host memory go with it; a mapping's stay.
        if (implicit) checker.forget(range_of(piece));
    }
}

void Machine::drop_physical(const std::shared_ptr<Physical>& physical) {
    const std::uint64_t begin = physical->offset | Space::physical_tag;
    const std::uint64_t bytes = physical->bytes;
    if (space_->release_if_unused(physical) && settings.checker) {
        checker.forget(Range{begin, begin + bytes, 0});
    }
}

}  // namespace vramkit::sim
