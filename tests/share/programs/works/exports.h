// Memory that is given to another process: of cuMemAlloc, and of a handle that is made for it.
#pragma once

#include <string.h>

#include "card.h"

namespace {

// Says what the two calls answer, and of which address the first handle is; then works on both
// memories for so many rounds.
void exports(int mebibytes, int count) {
    auto* of_address = other<CUresult(void*, CUdeviceptr)>("cuIpcGetMemHandle");
    auto* of_handle = other<CUresult(void*, CUmemGenericAllocationHandle, int, unsigned long long)>(
        "cuMemExportToShareableHandle");
    CUmemAllocationProp kind = plain_kind();
    kind.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    Block plain = allocate(size_t(mebibytes) << 20), mapped = map(4, kind);
    launch(fill, nullptr, plain.address, plain.bytes / 4, 1);
    launch(fill, nullptr, mapped.address, mapped.bytes / 4, 5);
    char handle[64] = {};
    CUdeviceptr named = 0;
    int file = -1;
    const CUresult first = of_address(handle, plain.address);
    memcpy(&named, handle, sizeof named);
    const CUresult second =
        of_handle(&file, mapped.handles[0], CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    printf("%d %d, %d %d\n", first, named == plain.address, second, file >= 0);
    fflush(stdout);
    for (int round = 0; round < count; ++round) {
        launch(add, nullptr, plain.address, plain.address, mapped.address, mapped.bytes / 4);
        CALL(cuStreamSynchronize, nullptr);
    }
    printf("%llx %llx\n", sum(plain, nullptr), sum(mapped, nullptr));
    give_back(plain);
    give_back(mapped);
}

}  // namespace
