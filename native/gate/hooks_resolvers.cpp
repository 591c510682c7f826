// cuGetProcAddress: the driver answers, and where we have a hook for what it gave, that is put in
// its place. Its status and result stay.
#include "gate/hooks.h"

namespace vramkit::gate::hooks {
namespace {

void replace(const char* symbol, void** function) {
    if (symbol == nullptr || function == nullptr || *function == nullptr) return;
    if (void* hook = active_hook(symbol, *function); hook != nullptr) *function = hook;
}

}  // namespace

CUresult get_proc_address(const Call<CUresult(const char*, void**, int, cuuint64_t)>& call,
                          const char* symbol, void** function, int version, cuuint64_t flags) {
    const CUresult result = call(symbol, function, version, flags);
    if (result == CUDA_SUCCESS) replace(symbol, function);
    return result;
}

CUresult get_proc_address_v2(const Call<CUresult(const char*, void**, int, cuuint64_t,
                                                 CUdriverProcAddressQueryResult*)>& call,
                             const char* symbol, void** function, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult* status) {
    const CUresult result = call(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS) replace(symbol, function);
    return result;
}

}  // namespace vramkit::gate::hooks
