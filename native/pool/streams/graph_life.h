// The life of a captured graph: blocks that were handed out while it was captured are part of it.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "driver/table.h"

namespace vramkit::pool {

// Says whether any graph of a capture is left, and how many there were is the driver's business: it
// holds a user object of ours and lets go of it with the last of them.
class GraphLife {
  public:
    // Ties a life to the graph that is being captured. One that never ends where the driver has no
    // user objects or refuses: the blocks then stay the graph's until the pool is closed.
    static std::shared_ptr<GraphLife> of(const DriverTable& call, CUgraph graph) {
        auto life = std::make_shared<GraphLife>();
        if (call.cuUserObjectCreate == nullptr || call.cuGraphRetainUserObject == nullptr) {
            return life;
        }
        // Given to the driver, and freed by end().
        auto held = std::make_unique<std::shared_ptr<GraphLife>>(life);
        CUuserObject object = nullptr;
        if (call.cuUserObjectCreate(&object, held.get(), &end, 1,
                                    CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) != CUDA_SUCCESS) {
            return life;
        }
        static_cast<void>(held.release());
        if (call.cuGraphRetainUserObject(graph, object, 1, CU_GRAPH_USER_OBJECT_MOVE) !=
            CUDA_SUCCESS) {
            // The life must not end now, though its object does.
            life->kept_.store(true);
            call.cuUserObjectRelease(object, 1);
        }
        return life;
    }
    bool over() const { return over_.load(std::memory_order_acquire) && !kept_.load(); }

  private:
    // On a thread of the driver, which may not be called here.
    static void end(void* held) {
        const std::unique_ptr<std::shared_ptr<GraphLife>> life(
            static_cast<std::shared_ptr<GraphLife>*>(held));
        (*life)->over_.store(true, std::memory_order_release);
    }

    std::atomic<bool> over_{false};
    std::atomic<bool> kept_{false};
};

}  // namespace vramkit::pool
