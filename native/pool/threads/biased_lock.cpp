// The kernel's part of a biased lock.
#include "pool/threads/biased_lock.h"

#include <linux/membarrier.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <chrono>

namespace vramkit::pool {
namespace {

bool membarrier(int command) { return syscall(SYS_membarrier, command, 0, 0) == 0; }

}  // namespace

bool BiasedLock::kernel_has_barrier() {
    static const bool has = membarrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
    return has;
}

void BiasedLock::put_barrier() {
    if (!kernel_has_barrier() || membarrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED)) return;
    // A sandbox has forbidden the call since. No store stays invisible for so long.
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
}

}  // namespace vramkit::pool
