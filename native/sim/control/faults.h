// Faults on demand: calls that fail or dawdle, by name and count.
#pragma once

#include <fnmatch.h>

#include <cstdint>
#include <string>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/api/calls.h"

namespace vramkit::sim {

struct Fault {
    std::string glob;         // of symbols
    std::uint64_t skip = 0;   // matching calls that still pass
    std::uint64_t times = 1;  // then this many are hit
    CUresult code = CUDA_SUCCESS;
    double delay_ns = 0;
};

// Whether a glob means this call: by its symbol, or by its name without the version.
inline bool names(const std::string& glob, const CallName& call) {
    return fnmatch(glob.c_str(), std::string(call.symbol).c_str(), 0) == 0 ||
           fnmatch(glob.c_str(), std::string(call.base).c_str(), 0) == 0;
}

class Faults {
  public:
    void add(Fault fault) { faults_.push_back(std::move(fault)); }
    void clear() { faults_.clear(); }
    bool empty() const { return faults_.empty(); }

    // What this call suffers: every matching fault counts it, delays add up, the first code wins.
    Fault strike(const CallName& call) {
        Fault hit{.glob = "", .times = 0};
        for (Fault& fault : faults_) {
            if (fault.times == 0 || !names(fault.glob, call)) continue;
            if (fault.skip > 0) {
                --fault.skip;
                continue;
            }
            --fault.times;
            hit.delay_ns += fault.delay_ns;
            if (hit.code == CUDA_SUCCESS) hit.code = fault.code;
        }
        return hit;
    }

  private:
    std::vector<Fault> faults_;
};

}  // namespace vramkit::sim
