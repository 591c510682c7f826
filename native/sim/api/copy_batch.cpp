// Exported calls: batches of copies.
#include "sim/api/copying.h"

using namespace vramkit::sim;

namespace {

// What a batch has failed at where no copy is to blame.
constexpr std::size_t kNoCopy = ~std::size_t{0};

bool find_order(CUmemcpySrcAccessOrder given, unsigned flags, SourceOrder& order) {
    if ((flags & ~unsigned{CU_MEMCPY_FLAG_PREFER_OVERLAP_WITH_COMPUTE}) != 0) return false;
    switch (given) {
        case CU_MEMCPY_SRC_ACCESS_ORDER_STREAM:
            order = SourceOrder::stream;
            return true;
        case CU_MEMCPY_SRC_ACCESS_ORDER_DURING_API_CALL:
            order = SourceOrder::during_call;
            return true;
        case CU_MEMCPY_SRC_ACCESS_ORDER_ANY:
            order = SourceOrder::any;
            return true;
        default:
            return false;
    }
}

// As documented: the first attributes are for the first copy, each for those up to the next.
bool attributes_cover(const CUmemcpyAttributes* attributes, const size_t* first_copies,
                      size_t attribute_count, size_t count) {
    if (attributes == nullptr || first_copies == nullptr || attribute_count == 0 ||
        attribute_count > count || first_copies[0] != 0) {
        return false;
    }
    for (size_t i = 1; i < attribute_count; ++i) {
        if (first_copies[i] <= first_copies[i - 1]) return false;
    }
    return first_copies[attribute_count - 1] < count;
}

CUresult copy_ranges(Call& call, const CUdeviceptr* destinations, const CUdeviceptr* sources,
                     const size_t* sizes, size_t count, const CUmemcpyAttributes* attributes,
                     const size_t* first_copies, size_t attribute_count, size_t& failed,
                     CUstream stream) {
    if (destinations == nullptr || sources == nullptr || sizes == nullptr ||
        !attributes_cover(attributes, first_copies, attribute_count, count)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    std::vector<Transfer> transfers;
    size_t which = 0;
    for (size_t i = 0; i < count; ++i) {
        if (which + 1 < attribute_count && first_copies[which + 1] == i) ++which;
        Transfer transfer{.box = {.width = sizes[i]},
                          .to = {destinations[i], {}, true},
                          .from = {sources[i], {}, true}};
        const CUmemcpyAttributes& given = attributes[which];
        if (sizes[i] == 0 || !find_order(given.srcAccessOrder, given.flags, transfer.order)) {
            failed = i;
            return CUDA_ERROR_INVALID_VALUE;
        }
        transfers.push_back(transfer);
    }
    return copy_batch(call, transfers, stream, failed);
}

// The operands are of bytes: arrays, which have other elements, are not simulated.
CUresult find_side(const CUmemcpy3DOperand& given, const Box& box, Side& side) {
    if (given.type == CU_MEMCPY_OPERAND_TYPE_ARRAY) return CUDA_ERROR_NOT_SUPPORTED;
    if (given.type != CU_MEMCPY_OPERAND_TYPE_POINTER) return CUDA_ERROR_INVALID_VALUE;
    const auto& memory = given.op.ptr;
    const std::uint64_t row = memory.rowLength != 0 ? memory.rowLength : box.width;
    const std::uint64_t rows = memory.layerHeight != 0 ? memory.layerHeight : box.height;
    if (row < box.width || rows < box.height || rows > Space::kMostAddresses / row) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    side = {memory.ptr, {row, row * rows}, true};
    return CUDA_SUCCESS;
}

CUresult transfer_of(const CUDA_MEMCPY3D_BATCH_OP& given, Transfer& transfer) {
    transfer.box = {given.extent.width, given.extent.height, given.extent.depth};
    if (transfer.box.empty() || !find_order(given.srcAccessOrder, given.flags, transfer.order)) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const CUresult to = find_side(given.dst, transfer.box, transfer.to);
    return to != CUDA_SUCCESS ? to : find_side(given.src, transfer.box, transfer.from);
}

CUresult copy_boxes(Call& call, size_t count, const CUDA_MEMCPY3D_BATCH_OP* copies, size_t& failed,
                    unsigned long long flags, CUstream stream) {
    if (count == 0 || copies == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    std::vector<Transfer> transfers(count);
    for (size_t i = 0; i < count; ++i) {
        const CUresult understood = transfer_of(copies[i], transfers[i]);
        if (understood == CUDA_SUCCESS) continue;
        failed = i;
        return understood;
    }
    return copy_batch(call, transfers, stream, failed);
}

// In CUDA 12.8 and 12.9 the calls tell which copy is to blame.
template <class Body>
CUresult telling(size_t* failed, Body body) {
    size_t index = kNoCopy;
    const CUresult result = body(index);
    if (result != CUDA_SUCCESS && failed != nullptr) *failed = index;
    return result;
}

}  // namespace

SIM_EXPORT CUresult cuMemcpyBatchAsync(CUdeviceptr* destinations, CUdeviceptr* sources,
                                       size_t* sizes, size_t count, CUmemcpyAttributes* attributes,
                                       size_t* first_copies, size_t attribute_count, size_t* failed,
                                       CUstream stream) {
    return run(CallId::cuMemcpyBatchAsync, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        return telling(failed, [&](size_t& index) {
            return copy_ranges(call, destinations, sources, sizes, count, attributes, first_copies,
                               attribute_count, index, stream);
        });
    });
}

SIM_EXPORT CUresult cuMemcpyBatchAsync_v2(CUdeviceptr* destinations, CUdeviceptr* sources,
                                          size_t* sizes, size_t count,
                                          CUmemcpyAttributes* attributes, size_t* first_copies,
                                          size_t attribute_count, CUstream stream) {
    return run(CallId::cuMemcpyBatchAsync_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   size_t index = kNoCopy;
                   return copy_ranges(call, destinations, sources, sizes, count, attributes,
                                      first_copies, attribute_count, index, stream);
               });
}

SIM_EXPORT CUresult cuMemcpy3DBatchAsync(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies,
                                         size_t* failed, unsigned long long flags,
                                         CUstream stream) {
    return run(CallId::cuMemcpy3DBatchAsync, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        return telling(failed, [&](size_t& index) {
            return copy_boxes(call, count, copies, index, flags, stream);
        });
    });
}

SIM_EXPORT CUresult cuMemcpy3DBatchAsync_v2(size_t count, CUDA_MEMCPY3D_BATCH_OP* copies,
                                            unsigned long long flags, CUstream stream) {
    return run(CallId::cuMemcpy3DBatchAsync_v2, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   size_t index = kNoCopy;
                   return copy_boxes(call, count, copies, index, flags, stream);
               });
}

SIM_PER_THREAD(cuMemcpyBatchAsync, ptsz,
               (CUdeviceptr * d, CUdeviceptr* s, size_t* n, size_t c, CUmemcpyAttributes* a,
                size_t* i, size_t m, size_t* f, CUstream t),
               (d, s, n, c, a, i, m, f, t))
SIM_PER_THREAD(cuMemcpyBatchAsync_v2, ptsz,
               (CUdeviceptr * d, CUdeviceptr* s, size_t* n, size_t c, CUmemcpyAttributes* a,
                size_t* i, size_t m, CUstream t),
               (d, s, n, c, a, i, m, t))
SIM_PER_THREAD(cuMemcpy3DBatchAsync, ptsz,
               (size_t c, CUDA_MEMCPY3D_BATCH_OP* o, size_t* f, unsigned long long g, CUstream t),
               (c, o, f, g, t))
SIM_PER_THREAD(cuMemcpy3DBatchAsync_v2, ptsz,
               (size_t c, CUDA_MEMCPY3D_BATCH_OP* o, unsigned long long g, CUstream t),
               (c, o, g, t))
