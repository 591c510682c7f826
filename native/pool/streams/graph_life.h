// The lifetime of a captured graph: blocks that were handed out during its capture belong to it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/table.h"

namespace vramkit::pool {

// Whether any graph of a capture still exists. The driver keeps count: graphs and executables hold
// a user object of ours, which is destroyed with the last of them.
class GraphLife {
  public:
    // Ties a lifetime to the graph that is being captured. Without user objects, or if the driver
    // fails, it never ends: the blocks then belong to the graph until the pool is closed.
    static std::shared_ptr<GraphLife> of(const DriverTable& call, CUgraph graph) {
        auto life = std::make_shared<GraphLife>();
        if (call.cuUserObjectCreate == nullptr || call.cuGraphRetainUserObject == nullptr) {
            return life;
        }
        // Owned by the driver from here on, and freed by end().
        auto held = std::make_unique<std::shared_ptr<GraphLife>>(life);
        CUuserObject object = nullptr;
        if (call.cuUserObjectCreate(&object, held.get(), &end, 1,
                                    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
            return life;
        }
        static_cast<void>(held.release());
        if (call.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) !=
            CUDA_SUCCESS) {
            // The user object ends here, but the lifetime must not.
            life->kept_.store(true);
            call.cuUserObjectRelease(object, 1);
        }
        return life;
    }
    bool over() const { return over_.load(std::memory_order_acquire) && !kept_.load(); }

  private:
    // Runs on a thread of the driver; driver calls are not allowed here.
    static void end(void* held) {
        const std::unique_ptr<std::shared_ptr<GraphLife>> life(
            static_cast<std::shared_ptr<GraphLife>*>(held));
        (*life)->over_.store(true, std::memory_order_release);
    }

    std::atomic<bool> over_{false};
    std::atomic<bool> kept_{false};
};

}  // namespace vramkit::pool
