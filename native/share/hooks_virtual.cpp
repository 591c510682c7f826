// Virtual memory calls of the program: PyTorch's expandable segments, vramkit's own pool.
#include "share/hooks.h"
#include "share/log.h"
#include "share/reservations.h"
#include "share/stream_ordered.h"
#include "share/unswappable.h"
#include "share/virtual_memory.h"

namespace vramkit::share::hooks {
namespace {

// Never destroyed.
Reservations& reservations() {
    static Reservations& made = *std::make_unique<Reservations>().release();
    return made;
}

// Memory of a card without any special kind. Handles that may be exported or used by RDMA are kept
// too: PyTorch and JAX ask for that wherever a card has it, and seldom use it. What is behind them
// is plain memory, so that an export is refused instead of reaching memory that moves.
bool can_be_swapped(const CUmemAllocationProp& properties) {
    return (properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_NONE ||
            properties.requestedHandleTypes == CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) &&
           properties.allocFlags.compressionType == 0 && properties.allocFlags.usage == 0;
}

// Says once for each reason that memory of handles stays on the card. None: by the user's wish.
void tell_why(const Settings& settings, const Card& card, const CUmemAllocationProp& properties) {
    static std::atomic<bool> told_mode{false};
    static std::atomic<bool> told_kind{false};
    if (settings.ipc) return;
    if (!card.keeps_handles()) {
        if (!told_mode.exchange(true)) {
            log("cuMemCreate: memory of handles stays on the card, unless the mode is swap");
        }
    } else if (!told_kind.exchange(true)) {
        log("cuMemCreate: memory of this kind stays on the card: handle types 0x%x, compression "
            "%d, usage 0x%x",
            static_cast<unsigned>(properties.requestedHandleTypes),
            static_cast<int>(properties.allocFlags.compressionType),
            static_cast<unsigned>(properties.allocFlags.usage));
    }
}

}  // namespace

CUresult create_handle(const Call<CUresult(CUmemGenericAllocationHandle*, size_t,
                                           const CUmemAllocationProp*, unsigned long long)>& call,
                       CUmemGenericAllocationHandle* handle, size_t bytes,
                       const CUmemAllocationProp* properties, unsigned long long flags) {
    Program& program = Program::get();
    if (program.forked() || handle == nullptr || properties == nullptr || flags != 0 ||
        bytes == 0 || bytes % kPage != 0 || properties->type != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE) {
        return call(handle, bytes, properties, flags);
    }
    Failure why;
    Card* const card = program.card(properties->location.id, why);
    if (card == nullptr) return call(handle, bytes, properties, flags);
    if (program.settings().ipc || !card->keeps_handles() || !can_be_swapped(*properties)) {
        const CUresult result = call(handle, bytes, properties, flags);
        if (result == CUDA_SUCCESS) {
            Unswappable::get().note_handle(card->device(), *handle, bytes);
            tell_why(program.settings(), *card, *properties);
        }
        return result;
    }
    CUresult result = virtual_memory::create(*card, handle, bytes, *properties);
    if (result == CUDA_ERROR_OUT_OF_MEMORY && StreamOrdered::get().give_back(*card)) {
        result = virtual_memory::create(*card, handle, bytes, *properties);
    }
    if (result == CUDA_SUCCESS) program.bring_for_capture();
    return result;
}

CUresult release_handle(const Call<CUresult(CUmemGenericAllocationHandle)>& call,
                        CUmemGenericAllocationHandle handle) {
    Program& program = Program::get();
    if (Card* const card = program.card_of_handle(handle)) {
        return virtual_memory::release(*card, handle);
    }
    const CUresult result = call(handle);
    if (result == CUDA_SUCCESS && !program.forked()) Unswappable::get().release_handle(handle);
    return result;
}

CUresult retain_handle(const Call<CUresult(CUmemGenericAllocationHandle*, void*)>& call,
                       CUmemGenericAllocationHandle* handle, void* pointer) {
    Program& program = Program::get();
    const auto address = reinterpret_cast<std::uint64_t>(pointer);
    Card* const card = handle != nullptr ? program.card_of_mapping(address) : nullptr;
    if (card == nullptr) {
        const CUresult result = call(handle, pointer);
        if (result == CUDA_SUCCESS && !program.forked()) Unswappable::get().retain_handle(*handle);
        return result;
    }
    const auto known = card->engine().handle_at(address);
    if (!known || !card->engine().retain(*known)) return CUDA_ERROR_INVALID_VALUE;
    *handle = *known;
    return CUDA_SUCCESS;
}

CUresult handle_properties(
    const Call<CUresult(CUmemAllocationProp*, CUmemGenericAllocationHandle)>& call,
    CUmemAllocationProp* properties, CUmemGenericAllocationHandle handle) {
    Card* const card = properties != nullptr ? Program::get().card_of_handle(handle) : nullptr;
    if (card == nullptr) return call(properties, handle);
    *properties = *card->properties_of(handle);
    return CUDA_SUCCESS;
}

CUresult reserve_addresses(
    const Call<CUresult(CUdeviceptr*, size_t, size_t, CUdeviceptr, unsigned long long)>& call,
    CUdeviceptr* pointer, size_t bytes, size_t alignment, CUdeviceptr address,
    unsigned long long flags) {
    const CUresult result = call(pointer, bytes, alignment, address, flags);
    if (result == CUDA_SUCCESS && !Program::get().forked()) reservations().add(*pointer, bytes);
    return result;
}

CUresult free_addresses(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                        size_t bytes) {
    Program& program = Program::get();
    // What is mapped there may be elsewhere just now: the driver would see nothing.
    if (program.card_of_mapping(pointer, bytes) != nullptr) return CUDA_ERROR_INVALID_VALUE;
    const CUresult result = call(pointer, bytes);
    if (result == CUDA_SUCCESS && !program.forked()) reservations().remove(pointer);
    return result;
}

CUresult map_handle(const Call<CUresult(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle,
                                        unsigned long long)>& call,
                    CUdeviceptr pointer, size_t bytes, size_t offset,
                    CUmemGenericAllocationHandle handle, unsigned long long flags) {
    Program& program = Program::get();
    Card* const card = program.card_of_handle(handle);
    if (card == nullptr) {
        const CUresult result = call(pointer, bytes, offset, handle, flags);
        if (result == CUDA_SUCCESS && !program.forked()) {
            Unswappable::get().note_mapping(pointer, handle);
        }
        return result;
    }
    // As the driver says; for memory that is not on the card it is not asked.
    if (flags != 0 || !reservations().hold(pointer, bytes)) return CUDA_ERROR_INVALID_VALUE;
    return virtual_memory::map(*card, pointer, bytes, offset, handle);
}

CUresult unmap_memory(const Call<CUresult(CUdeviceptr, size_t)>& call, CUdeviceptr pointer,
                      size_t bytes) {
    Program& program = Program::get();
    if (Card* const card = program.card_of_mapping(pointer, bytes)) {
        return virtual_memory::unmap(*card, pointer, bytes);
    }
    const CUresult result = call(pointer, bytes);
    if (result == CUDA_SUCCESS && !program.forked()) {
        Unswappable::get().forget_mappings(pointer, bytes);
    }
    return result;
}

CUresult set_access(const Call<CUresult(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t)>& call,
                    CUdeviceptr pointer, size_t bytes, const CUmemAccessDesc* access,
                    size_t count) {
    Card* const card = access != nullptr ? Program::get().card_of_mapping(pointer, bytes) : nullptr;
    if (card == nullptr) return call(pointer, bytes, access, count);
    return virtual_memory::set_access(*card, pointer, bytes, access, count);
}

CUresult get_access(
    const Call<CUresult(unsigned long long*, const CUmemLocation*, CUdeviceptr)>& call,
    unsigned long long* flags, const CUmemLocation* location, CUdeviceptr pointer) {
    const bool whole = flags != nullptr && location != nullptr;
    Card* const card = whole ? Program::get().card_of_mapping(pointer) : nullptr;
    if (card == nullptr) return call(flags, location, pointer);
    *flags = card->engine().access(pointer, *location);
    return CUDA_SUCCESS;
}

CUresult export_handle(const Call<CUresult(void*, CUmemGenericAllocationHandle,
                                           CUmemAllocationHandleType, unsigned long long)>& call,
                       void* shareable, CUmemGenericAllocationHandle handle,
                       CUmemAllocationHandleType type, unsigned long long flags) {
    if (Program::get().card_of_handle(handle) == nullptr) {
        return call(shareable, handle, type, flags);
    }
    log("cuMemExportToShareableHandle: memory that is swapped cannot be given to another process; "
        "run the program with --ipc");
    return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace vramkit::share::hooks
