// Allocations of the program: addresses for ever, memory of the card when work may use it.
#include "base/sizes.h"
#include "share/hooks.h"
#include "share/log.h"
#include "share/stream_ordered.h"
#include "share/unswappable.h"

namespace vramkit::share::hooks {
namespace {

// A pitch is a multiple of this on the cards that we know.
constexpr std::size_t kPitchAlignment = 512;

CUresult error_of(const Failure& why) {
    return why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult allocated(Card& card, CUdeviceptr* pointer, std::size_t bytes) {
    Program& program = Program::get();
    CUcontext context = nullptr;
    program.call().cuCtxGetCurrent(&context);
    Failure why;
    std::uint64_t address = card.allocate(bytes, context, why);
    if (address == 0 && StreamOrdered::get().give_back(card)) {
        address = card.allocate(bytes, context, why);
    }
    if (address == 0) {
        log("%zu bytes refused: %llu of %llu MiB are in use", bytes,
            static_cast<unsigned long long>(card.in_use() >> 20),
            static_cast<unsigned long long>(card.limit() >> 20));
        return error_of(why);
    }
    LaunchGate::note_unbacked();
    program.bring_for_capture();
    *pointer = address;
    return CUDA_SUCCESS;
}

// Memory that the driver gave out, until the program frees it.
void note_unswappable(CUdeviceptr address, std::size_t bytes) {
    Program& program = Program::get();
    Card* const card = program.current_card();
    CUcontext context = nullptr;
    if (card == nullptr || program.call().cuCtxGetCurrent(&context) != CUDA_SUCCESS) return;
    Unswappable::get().note(card->device(), address, bytes, context);
}

}  // namespace

CUresult allocate(const Call<CUresult(CUdeviceptr*, size_t)>& call, CUdeviceptr* pointer,
                  size_t bytes) {
    Program& program = Program::get();
    Card* const card = program.current_card();
    // The driver says what is wrong with the arguments.
    if (card == nullptr || pointer == nullptr || bytes == 0) return call(pointer, bytes);
    if (!program.settings().ipc) return allocated(*card, pointer, bytes);
    const CUresult result = call(pointer, bytes);
    if (result == CUDA_SUCCESS) note_unswappable(*pointer, bytes);
    return result;
}

// The driver moves it as the program uses it; none of it can be taken away by us.
CUresult allocate_managed(const Call<CUresult(CUdeviceptr*, size_t, unsigned int)>& call,
                          CUdeviceptr* pointer, size_t bytes, unsigned int flags) {
    const CUresult result = call(pointer, bytes, flags);
    // More than the card has is no error: then the driver pages, and all that there is counts.
    Card* const card = result == CUDA_SUCCESS ? Program::get().current_card() : nullptr;
    if (card != nullptr) note_unswappable(*pointer, std::min<std::uint64_t>(bytes, card->left()));
    return result;
}

CUresult allocate_pitch(
    const Call<CUresult(CUdeviceptr*, size_t*, size_t, size_t, unsigned int)>& call,
    CUdeviceptr* pointer, size_t* pitch, size_t width, size_t height, unsigned int element) {
    Program& program = Program::get();
    Card* const card = program.current_card();
    const bool plain = element != 4 && element != 8 && element != 16;
    if (card == nullptr || pointer == nullptr || pitch == nullptr || width == 0 || height == 0 ||
        plain) {
        return call(pointer, pitch, width, height, element);
    }
    if (program.settings().ipc) {
        const CUresult result = call(pointer, pitch, width, height, element);
        if (result == CUDA_SUCCESS) note_unswappable(*pointer, *pitch * height);
        return result;
    }
    const std::size_t row = round_up(width, kPitchAlignment);
    if (height > kLargestRequest / row) return CUDA_ERROR_OUT_OF_MEMORY;
    const CUresult result = allocated(*card, pointer, row * height);
    if (result == CUDA_SUCCESS) *pitch = row;
    return result;
}

CUresult free_memory(const Call<CUresult(CUdeviceptr)>& call, CUdeviceptr pointer) {
    Program& program = Program::get();
    CUdevice device = 0;
    // Without a current context the driver refuses.
    if (pointer == 0 || program.forked() ||
        program.call().cuCtxGetDevice(&device) != CUDA_SUCCESS) {
        return call(pointer);
    }
    if (const auto result = StreamOrdered::get().free_now(pointer)) return *result;
    Card* const card = program.card_of(pointer);
    if (card == nullptr) {
        const CUresult result = call(pointer);
        if (result == CUDA_SUCCESS) Unswappable::get().forget(pointer);
        return result;
    }
    const auto owned = card->find(pointer);
    if (!owned || owned->begin != pointer) return CUDA_ERROR_INVALID_VALUE;
    // As programs rely on: what they have issued is done when cuMemFree returns.
    if (!card->wait_for_work(owned->context)) return CUDA_ERROR_UNKNOWN;
    Failure why;
    return card->free(pointer, why) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult memory_info(const Call<CUresult(size_t*, size_t*)>& call, size_t* free, size_t* total) {
    const CUresult result = call(free, total);
    Card* const card = result == CUDA_SUCCESS ? Program::get().current_card() : nullptr;
    if (card == nullptr) return result;
    // Others' memory is not the program's business: it can have what its limit leaves.
    *total = card->limit();
    *free = card->left();
    return result;
}

CUresult total_memory(const Call<CUresult(size_t*, CUdevice)>& call, size_t* bytes,
                      CUdevice device) {
    const CUresult result = call(bytes, device);
    if (result != CUDA_SUCCESS) return result;
    // Asked before the program uses the card, often of all cards: none is opened for that.
    Program& program = Program::get();
    Card* const card = program.card_if_open(device);
    const std::uint64_t limit = card != nullptr ? card->limit() : program.settings().memory;
    if (limit != 0 && limit < *bytes) *bytes = limit;
    return CUDA_SUCCESS;
}

}  // namespace vramkit::share::hooks
