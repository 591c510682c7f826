// What managed memory costs an operation: its pages move before it begins, over the link that
// copies use too.
//
// Where the pages are changes at once, when the operation's moment has come; the bytes take their
// time. What goes and what comes moves at the same time.
#include <algorithm>

#include "sim/machine/machine.h"

namespace vramkit::sim {
namespace {

constexpr double kNanosecondsPerSecond = 1e9;

double time_ns(std::uint64_t bytes, double bytes_per_s) {
    return static_cast<double>(bytes) / bytes_per_s * kNanosecondsPerSecond;
}

}  // namespace

Moves Machine::moves_for(const Operation& operation) {
    ManagedPages& pages = space_->managed();
    Moves moves;
    const auto use = [&](std::uint64_t address, std::uint64_t bytes, bool write) {
        if (space_->is_device_address(address)) {
            pages.use(operation.device, address, bytes, write, moves);
        }
    };
    switch (operation.kind) {
        case Kind::kernel:
            for (const Touch& touch : operation.kernel->touches(operation.arguments)) {
                use(touch.address, touch.bytes, touch.use != Use::read);
            }
            break;
        case Kind::copy:
            use(operation.source, span_of(operation.box, operation.from), false);
            use(operation.destination, span_of(operation.box, operation.to), true);
            moves.faults = 0;  // an engine knows what it needs
            break;
        case Kind::set:
            use(operation.destination, span_of(operation.box, operation.to), true);
            moves.faults = 0;
            break;
        case Kind::write_value:
            use(operation.destination, operation.width, true);
            break;
        case Kind::prefetch:
            pages.prefetch(static_cast<std::int32_t>(operation.value), operation.destination,
                           operation.bytes, moves);
            break;
        default:
            break;
    }
    return moves;
}

void Machine::prepare(Operation& operation) {
    if (space_->managed().empty()) return;
    const Moves moves = moves_for(operation);
    if (moves.none()) return;
    const ManagedRates& rates = profile().managed;
    const bool by_faults = moves.faults > 0;
    const double most = (by_faults ? rates.fault_bytes_per_s() : rates.prefetch_bytes_per_s) /
                        kNanosecondsPerSecond;
    // A fault takes its time however much of its bytes there was to bring.
    const std::uint64_t in = by_faults ? moves.faults * rates.fault_bytes : moves.in;
    const double populating = time_ns(moves.populated, rates.populate_bytes_per_s);
    if (in > 0 || populating > 0) {
        put_move(operation, in > 0 ? Lane::host_to_device : Lane::none, in, most, populating);
    }
    // What makes room for faults goes as they come.
    if (moves.out > 0) put_move(operation, Lane::device_to_host, moves.out, most, 0);
    if (moves.read_far > 0) put_move(operation, Lane::host_to_device, moves.read_far, 0, 0);
    if (moves.written_far > 0) put_move(operation, Lane::device_to_host, moves.written_far, 0, 0);
}

void Machine::put_move(Operation& operation, Lane lane, std::uint64_t bytes, double most,
                       double latency) {
    Operation* move = core_->make();
    move->kind = Kind::migrate;
    move->lane = lane;
    move->device = operation.device;
    move->call = operation.call;
    move->stream = operation.stream;
    move->site = operation.site;
    move->bytes = bytes;
    move->work = static_cast<double>(bytes);
    move->most = most;
    move->latency = latency;
    core_->put_before(&operation, move);
}

double Machine::take_eviction_ns() {
    const std::uint64_t bytes = space_->managed().take_evicted();
    return bytes == 0 ? 0 : time_ns(bytes, profile().link.device_to_host_bytes_per_s);
}

double Machine::host_pages_ns(std::uint64_t address, std::uint64_t bytes, bool write) {
    if (space_->managed().empty()) return 0;
    const std::uint64_t moved = space_->managed().use_by_host(address, bytes, write);
    const double rate =
        std::min(profile().managed.fault_bytes_per_s(), profile().link.device_to_host_bytes_per_s);
    return moved == 0 ? 0 : time_ns(moved, rate);
}

}  // namespace vramkit::sim
