// The kernels the simulated GPU knows: what they touch, how long they take, what they compute.
// The same names stand as PTX text in src/vramkit/driver/kernels.ptx for a real card.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "sim/checker/checker.h"
#include "sim/profile/profile.h"

namespace vramkit::sim {

using Arguments = std::array<std::uint64_t, 4>;

// Bytes a kernel uses; a kernel that reads and writes the same range gives it twice.
struct Touch {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    Use use = Use::read;
};

// The bytes of one range, as the host reaches them: the alias of a range of device addresses is one
// range too, however many mappings it spans. Empty with data off.
using Bytes = std::span<std::byte>;

struct BuiltinKernel {
    std::string_view name;
    std::array<unsigned, 4> sizes{};  // of the parameters in bytes; 0: none
    std::vector<Touch> (*touches)(const Arguments&);
    // Time at full share of the card, in nanoseconds.
    double (*duration_ns)(const Arguments&, const Profile&);
    // The ranges of touches(), as bytes. One that is read and one that is written are the same
    // bytes or have none in common. Not called with data off.
    void (*execute)(const Arguments&, std::span<const Bytes>);
};

// What the first line of a module's PTX text must say to be taken for ours.
inline constexpr std::string_view kModuleMark = "// vramkit built-in kernels 1";

// Fills a range with a value of 1, 2, 4 or 8 bytes; its size is a multiple of that.
void fill_bytes(Bytes range, std::uint64_t value, unsigned width);

// Null for a name that is not built in.
const BuiltinKernel* find_kernel(std::string_view name);

}  // namespace vramkit::sim
