// What operations do to memory, events and the host when their simulated moment comes.
#include <algorithm>
#include <cstring>

#include "sim/machine/machine.h"

namespace vramkit::sim {
namespace {

constexpr int kPoison = 0xDB;  // what a destination holds while a copy to it is under way

Bytes joined(const std::vector<Piece>& pieces) {
    if (pieces.empty() || pieces.front().data == nullptr) return {};
    const Piece& last = pieces.back();
    return Bytes(pieces.front().data, last.data + last.bytes);
}

// A range of a kernel, and the memory behind it.
struct Used {
    Touch touch;
    std::vector<Piece> pieces;
    Bytes bytes;
};

bool same_memory(const Used& one, const Used& other) {
    return std::equal(one.pieces.begin(), one.pieces.end(), other.pieces.begin(),
                      other.pieces.end(), [](const Piece& a, const Piece& b) {
                          return a.physical == b.physical && a.bytes == b.bytes;
                      });
}

// Whether two ranges have bytes in common, be it at different addresses.
bool share_memory(const Used& one, const Used& other) {
    return std::any_of(one.pieces.begin(), one.pieces.end(), [&](const Piece& a) {
        return std::any_of(other.pieces.begin(), other.pieces.end(), [&](const Piece& b) {
            return a.physical < b.physical + b.bytes && b.physical < a.physical + a.bytes;
        });
    });
}

bool shows_to_host(const Operation& operation) {
    return operation.kind == Kind::host_function || operation.kind == Kind::write_value;
}

}  // namespace

// With data off device memory has no bytes, and succeeds where it is mapped.
bool Machine::bytes_of(std::uint64_t address, std::uint64_t bytes, Bytes& out, bool pageable) {
    if (pageable && !space_->is_device_address(address)) {
        out = Bytes(reinterpret_cast<std::byte*>(address), bytes);
        return true;
    }
    std::vector<Piece> pieces;
    if (!space_->resolve(address, bytes, pieces)) return false;
    out = joined(pieces);
    return true;
}

bool Machine::lost(const Operation& operation) {
    return operation.stream->context->error != CUDA_SUCCESS;
}

void Machine::fault(Operation& operation, CUresult code) {
    // What a kernel breaks stays broken for the whole process, a new primary context included.
    operation.stream->context->error = code;
    devices[operation.device].lost = code;
}

void Machine::started(Operation& operation) {
    if (!operation.poison || !settings.data) return;
    each_row(operation.box, operation.to, [&](std::uint64_t at, std::uint64_t bytes) {
        Bytes row;
        if (!bytes_of(operation.destination + at, bytes, row, operation.pageable)) return;
        if (!row.empty()) std::memset(row.data(), kPoison, row.size());
    });
}

void Machine::finished(Operation& operation, double end) {
    Stream& stream = *operation.stream;
    if (shows_to_host(operation)) --host_visible;
    if (!lost(operation)) {
        switch (operation.kind) {
            case Kind::copy:
                run_copy(operation);
                break;
            case Kind::set:
                run_set(operation);
                break;
            case Kind::kernel:
                run_kernel(operation);
                break;
            case Kind::write_value:
                run_write(operation);
                break;
            default:
                break;
        }
    }
    if (operation.kind == Kind::free) {
        // The context of the block may be gone, and the block with it.
        const Allocation* block = space_->allocation_at(operation.destination);
        if (block != nullptr && block->freed) {
            forget_range(operation.destination, block->bytes);
            space_->free(operation.destination);
        }
    }
    if (operation.event != nullptr) {
        operation.event->pending = nullptr;
        operation.event->time = end;
    }
    if (operation.milestone != nullptr) operation.milestone->pending = nullptr;
    if (timeline_limit > 0 && operation.lane != Lane::none) {
        if (timeline.size() == timeline_limit) timeline.pop_front();
        timeline.push_back(Span{
            operation.call, operation.kernel != nullptr ? operation.kernel->name : "",
            operation.lane, operation.device, stream.id, operation.start, end, operation.bytes});
    }
    if (operation.kind == Kind::migrate) return;  // part of another operation of the stream
    if (stream.last == &operation) stream.last = nullptr;
    if (--stream.pending == 0 && stream.destroyed) {
        std::erase_if(stream.context->streams,
                      [&](const auto& each) { return each.get() == &stream; });
    }
}

void Machine::run_copy(Operation& operation) {
    const bool staged = !operation.staged.empty();
    const Strides from = staged ? packed(operation.box) : operation.from;
    bool there = true;
    each_row(operation.box, operation.to, from,
             [&](std::uint64_t to_at, std::uint64_t from_at, std::uint64_t bytes) {
                 Bytes destination, source;
                 const bool pageable = operation.pageable;
                 there =
                     there && bytes_of(operation.destination + to_at, bytes, destination, pageable);
                 if (staged) {
                     source = Bytes(operation.staged).subspan(from_at, bytes);
                 } else {
                     there = there && bytes_of(operation.source + from_at, bytes, source, pageable);
                 }
                 if (there && settings.data) {
                     std::memmove(destination.data(), source.data(), bytes);
                 }
             });
    if (!there) fault(operation, CUDA_ERROR_ILLEGAL_ADDRESS);
}

void Machine::run_set(Operation& operation) {
    bool there = true;
    each_row(operation.box, operation.to, [&](std::uint64_t at, std::uint64_t bytes) {
        Bytes row;
        there = there && bytes_of(operation.destination + at, bytes, row);
        if (there) fill_bytes(row, operation.value, operation.width);
    });
    if (!there) fault(operation, CUDA_ERROR_ILLEGAL_ADDRESS);
}

void Machine::run_kernel(Operation& operation) {
    std::vector<Used> used;
    for (const Touch& touch : operation.kernel->touches(operation.arguments)) {
        Used& range = used.emplace_back(Used{touch, {}, {}});
        bool allowed = space_->resolve(touch.address, touch.bytes, range.pieces);
        for (const Piece& piece : range.pieces) {
            allowed = allowed && piece.readable && (touch.use == Use::read || piece.writable);
        }
        if (!allowed) return fault(operation, CUDA_ERROR_ILLEGAL_ADDRESS);
        range.bytes = joined(range.pieces);
    }
    if (!settings.data) return;
    // What a kernel reads of a range that it writes shifted is undefined on a card. Here it reads
    // what was there before.
    std::vector<std::vector<std::byte>> before;
    std::vector<Bytes> ranges;
    for (const Used& range : used) {
        const bool disturbed = range.touch.use == Use::read &&
                               std::any_of(used.begin(), used.end(), [&](const Used& other) {
                                   return other.touch.use == Use::write &&
                                          share_memory(range, other) && !same_memory(range, other);
                               });
        if (disturbed) before.emplace_back(range.bytes.begin(), range.bytes.end());
        ranges.push_back(disturbed ? Bytes(before.back()) : range.bytes);
    }
    operation.kernel->execute(operation.arguments, ranges);
}

void Machine::run_write(Operation& operation) {
    Bytes destination;
    if (!bytes_of(operation.destination, operation.width, destination)) {
        return fault(operation, CUDA_ERROR_ILLEGAL_ADDRESS);
    }
    if (destination.empty()) {
        values_[operation.destination] = operation.value;
    } else {
        std::memcpy(destination.data(), &operation.value, operation.width);
    }
}

std::uint64_t Machine::value_at(std::uint64_t address, unsigned width) {
    Bytes bytes;
    if (!bytes_of(address, width, bytes)) return 0;
    if (bytes.empty()) {
        const auto it = values_.find(address);
        return it == values_.end() ? 0 : it->second;
    }
    // Other threads of the program may write it while we look.
    if (width == 8) {
        return __atomic_load_n(reinterpret_cast<std::uint64_t*>(bytes.data()), __ATOMIC_ACQUIRE);
    }
    return __atomic_load_n(reinterpret_cast<std::uint32_t*>(bytes.data()), __ATOMIC_ACQUIRE);
}

bool condition_holds(std::uint64_t seen, std::uint64_t value, unsigned condition, unsigned width) {
    const std::uint64_t mask = width == 8 ? ~std::uint64_t{0} : 0xffffffffu;
    switch (condition) {
        case CU_STREAM_WAIT_VALUE_GEQ:
            // Cyclic comparison: the difference, read as a signed number, is not negative.
            return width == 8
                       ? static_cast<std::int64_t>(seen - value) >= 0
                       : static_cast<std::int32_t>(static_cast<std::uint32_t>(seen - value)) >= 0;
        case CU_STREAM_WAIT_VALUE_EQ:
            return seen == value;
        case CU_STREAM_WAIT_VALUE_AND:
            return (seen & value) != 0;
        default:
            return (~(seen | value) & mask) != 0;
    }
}

bool Machine::value_reached(const Operation& operation) {
    return condition_holds(value_at(operation.destination, operation.width), operation.value,
                           operation.condition, operation.width);
}

void Machine::run_host_function(Operation& operation) {
    ++host_functions_out;
    host_functions.push_back(&operation);
}

}  // namespace vramkit::sim
