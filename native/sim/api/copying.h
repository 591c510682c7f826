// Copies and sets as the exported calls ask for them, whatever their form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "sim/api/call.h"
#include "sim/machine/box.h"

namespace vramkit::sim {

// One side of a copy. pageable: the call lets it be host memory that the driver does not know.
struct Side {
    std::uint64_t address = 0;
    Strides strides;
    bool pageable = false;
};

// When a copy may read its source. as_usual: in stream order; what it takes from pageable memory it
// has taken when the call returns. The others are those of CUmemcpySrcAccessOrder.
enum class SourceOrder : std::uint8_t { as_usual, stream, during_call, any };

struct Transfer {
    Box box;
    Side to;
    Side from;
    SourceOrder order = SourceOrder::as_usual;
};

inline std::uint64_t address(const void* pointer) {
    return reinterpret_cast<std::uint64_t>(pointer);
}

CUresult copy(Call& call, const Transfer& transfer, CUstream stream, bool synchronous);

// Copies in no order among themselves, all in stream order. Nothing is issued where one of them
// cannot be: `failed` is then its index, or stays where no copy is to blame.
CUresult copy_batch(Call& call, std::span<const Transfer> transfers, CUstream stream,
                    std::size_t& failed);

// `value` is of `width` bytes, of which the box is made.
CUresult set(Call& call, std::uint64_t destination, const Box& box, const Strides& strides,
             std::uint64_t value, unsigned width, CUstream stream, bool synchronous);

}  // namespace vramkit::sim
