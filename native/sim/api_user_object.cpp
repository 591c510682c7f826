// Exported calls: user objects, and the references that graphs have to them.
#include <limits>

#include "sim/call.h"

using namespace vramkit::sim;

namespace {

bool can_be_counted(unsigned int references) {
    return references > 0 && references <= std::numeric_limits<int>::max();
}

CUresult valid(bool right) { return right ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE; }

}  // namespace

SIM_EXPORT CUresult cuUserObjectCreate(CUuserObject* object, void* data, CUhostFn destroy,
                                       unsigned int references, unsigned int flags) {
    return run(CallId::cuUserObjectCreate, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   if (object == nullptr || destroy == nullptr || !can_be_counted(references) ||
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
    return run(CallId::cuUserObjectRelease, SIM_RETURN_ADDRESS, Needs::initialised, 0,
               [&](Call& call) {
                   return valid(can_be_counted(count) &&
                                call.machine().user_objects.program.drop(handle, count));
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
                   return valid(owner != nullptr && can_be_counted(count) &&
                                owner->objects.drop(handle, count));
               });
}
