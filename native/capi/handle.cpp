// The process-wide pool, with its failure as the thread's last error.
#include "capi/handle.h"

#include "capi/errors.h"
#include "pool/instances.h"

namespace vramkit::capi {

Handle* default_pool(int device) {
    Failure why;
    Handle* const found = pool::default_pool(device, why);
    if (found == nullptr) fail(why);
    return found;
}

}  // namespace vramkit::capi
