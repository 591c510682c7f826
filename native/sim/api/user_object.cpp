// Exported calls: user objects, and the references that graphs have to them.
#include <limits>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

bool can_be_counted(unsigned int references) {
    return references > 0 && references <= std::numeric_limits<int>::max();
}

}  // namespace

SIM_EXPORT CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy,
                                       unsigned int references, unsigned int flags) {
    // No call of cuInit need come before, and more references are taken here than later.
    return run(CallId::cuUserObjectCreate, SIM_RETURN_ADDRESS, Needs::nothing, 0, [&](Call& call) {
        if (object == nullptr || destroy == nullptr || references == 0 ||
            flags != CU_USER_OBJECT_NO_DESTRUCTOR_SYNC) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *object = call.machine().user_objects.make({destroy, data, {}}, references);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuUserObjectRetain(CUuserObject handle, unsigned int count) {
    return run(CallId::cuUserObjectRetain, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   UserObjects& objects = call.machine().user_objects;
                   const auto object = objects.find(handle);
                   if (object == nullptr || !can_be_counted(count)) return CUDA_ERROR_INVALID_VALUE;
                   objects.program.add(object, count);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuUserObjectRelease(CUuserObject handle, unsigned int count) {
    return run(
        CallId::cuUserObjectRelease, SIM_RETURN_ADDRESS, Needs::initialised, 0, [&](Call& call) {
            const bool had =
                can_be_counted(count) && call.machine().user_objects.program.drop(handle, count);
            return had ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
        });
}

SIM_EXPORT CUresult cuGraphRetainUserObject(CUgraph graph, CUuserObject handle, unsigned int count,
                                            unsigned int flags) {
    return run(CallId::cuGraphRetainUserObject, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   UserObjects& objects = call.machine().user_objects;
                   const auto owner = call.machine().captures.find(graph);
                   const auto object = objects.find(handle);
                   if (owner == nullptr || object == nullptr || !can_be_counted(count) ||
                       (flags & ~unsigned{CU_GRAPH_USER_OBJECT_MOVE}) != 0) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   const bool move = (flags & CU_GRAPH_USER_OBJECT_MOVE) != 0;
                   if (move && !objects.program.drop(handle, count)) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   owner->objects.add(object, count);
                   return CUDA_SUCCESS;
               });
}

SIM_EXPORT CUresult cuGraphReleaseUserObject(CUgraph graph, CUuserObject handle,
                                             unsigned int count) {
    return run(CallId::cuGraphReleaseUserObject, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   const auto owner = call.machine().captures.find(graph);
                   const bool known = call.machine().user_objects.find(handle) != nullptr;
                   if (owner == nullptr || !known || !can_be_counted(count)) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   owner->objects.drop_up_to(handle, count);
                   return CUDA_SUCCESS;
               });
}
