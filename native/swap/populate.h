// Host memory gets its pages before it is needed.
#pragma once

#include <cstddef>
#include <cstdint>

namespace vramkit::swap {

// Gives every page of the range memory, by this many threads; 0: does nothing. Pages are zeroed by
// the system, one thread does 5 GB/s of huge pages and 16 do 51. False: the system has none left.
bool populate(std::byte* data, std::uint64_t bytes, unsigned threads);

}  // namespace vramkit::swap
