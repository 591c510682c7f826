// Exported calls: cuGetProcAddress, from the manifest.
#include <string>

#include "sim/api/call.h"

using namespace vramkit::sim;

// Every export, declared once more so that its address can be taken here.
#define SIM_DECLARE_none(symbol, params)
#define SIM_DECLARE_ptsz(symbol, params) SIM_EXPORT CUresult symbol##_ptsz params;
#define SIM_DECLARE_ptds(symbol, params) SIM_EXPORT CUresult symbol##_ptds params;
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) \
    SIM_EXPORT CUresult symbol params;                          \
    SIM_DECLARE_##suffix(symbol, params)
#include "driver/manifest.def"
#undef VRAMKIT_CALL

namespace {

struct Entry {
    const char* base;
    int since;
    void* function;
    void* per_thread;  // null where there is no variant
};

#define SIM_VARIANT_none(symbol) nullptr
#define SIM_VARIANT_ptsz(symbol) reinterpret_cast<void*>(&symbol##_ptsz)
#define SIM_VARIANT_ptds(symbol) reinterpret_cast<void*>(&symbol##_ptds)
const Entry kEntries[] = {
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) \
    {#base, since, reinterpret_cast<void*>(&symbol), SIM_VARIANT_##suffix(symbol)},
#include "driver/manifest.def"
#undef VRAMKIT_CALL
};

// A variant for per-thread default streams is younger than the plain call.
constexpr int kPerThreadSince = 7000;

// The newest variant of a call that the asked-for version knows.
CUresult look_up(Call& call, const char* symbol, void** function, int version, cuuint64_t flags,
                 CUdriverProcAddressQueryResult* status) {
    const int driver_version = call.machine().profile().driver_version;
    if (symbol == nullptr || function == nullptr ||
        (flags & ~cuuint64_t{CU_GET_PROC_ADDRESS_LEGACY_STREAM |
                             CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM}) != 0 ||
        version > driver_version) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    const Entry* best = nullptr;
    bool known = false;
    for (const Entry& entry : kEntries) {
        if (std::string_view(entry.base) != symbol) continue;
        known = true;
        if (entry.since <= version && (best == nullptr || entry.since > best->since)) {
            best = &entry;
        }
    }
    *function = nullptr;
    if (!known) call.unsupported(symbol, Unsupported::Reason::missing);
    if (best != nullptr) {
        const bool variant =
            per_thread && best->per_thread != nullptr && version >= kPerThreadSince;
        *function = variant ? best->per_thread : best->function;
    }
    if (status != nullptr) {
        *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
        return CUDA_SUCCESS;
    }
    return best != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

SIM_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                        cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
    return run(CallId::cuGetProcAddress_v2, SIM_RETURN_ADDRESS, Needs::nothing, 0,
               [&](Call& call) { return look_up(call, symbol, function, version, flags, status); });
}

SIM_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                     cuuint64_t flags) {
    return run(CallId::cuGetProcAddress, SIM_RETURN_ADDRESS, Needs::nothing, 0, [&](Call& call) {
        return look_up(call, symbol, function, version, flags, nullptr);
    });
}
