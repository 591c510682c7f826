// Kernels, sets and values: the work that streams do on blocks.
#pragma once

#include "state.h"

namespace fuzz {

enum class Kernel { fill, add, sweep, checksum };

struct Argument {
    unsigned long long value;
    size_t bytes;
};

// A launch in one of its forms.
inline void launch(State& state, CUfunction function, CUstream stream,
                   std::vector<Argument> arguments) {
    std::vector<void*> parameters;
    for (Argument& each : arguments) parameters.push_back(&each.value);
    unsigned grid = state.pick(3) + 1, block = 32 << state.pick(4);
    switch (state.pick(5)) {
        case 0: {
            std::vector<char> packed;
            for (const Argument& each : arguments) {
                packed.resize((packed.size() + each.bytes - 1) / each.bytes * each.bytes);
                packed.insert(packed.end(), reinterpret_cast<const char*>(&each.value),
                              reinterpret_cast<const char*>(&each.value) + each.bytes);
            }
            size_t size = packed.size();
            void* extra[] = {reinterpret_cast<void*>(1), packed.data(), reinterpret_cast<void*>(2),
                             &size, nullptr};
            CALL(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, stream, nullptr, extra);
            return;
        }
        case 1: {
            CUlaunchConfig config{};
            config.gridDimX = grid, config.gridDimY = config.gridDimZ = 1;
            config.blockDimX = block, config.blockDimY = config.blockDimZ = 1;
            config.hStream = stream;
            CALL(cuLaunchKernelEx, &config, function, parameters.data(), nullptr);
            return;
        }
        case 2:
            CALL(cuLaunchCooperativeKernel, function, grid, 1, 1, block, 1, 1, 0, stream,
                 parameters.data());
            return;
        default:
            CALL(cuLaunchKernel, function, grid, 1, 1, block, 1, 1, 0, stream, parameters.data(),
                 nullptr);
    }
}

inline void launch_fill(State& state, int stream, const Range& range, unsigned value) {
    const Stream& on = state.streams[stream];
    launch(state, state.contexts[on.context].fill, on.handle,
           {{range.address, 8}, {range.bytes / 4, 8}, {value, 4}});
}

// All bytes of a new block get a value.
inline void fill_block(State& state, Block& block) {
    const int stream = any_stream(state, block.device);
    if (stream < 0) return;
    order(state, block, stream);
    const unsigned value = state.random();
    const unsigned how = state.pick(7);
    if (block.bytes % 4 != 0 || how == 0) {
        CALL(cuMemsetD8Async, block.address, static_cast<unsigned char>(value), block.bytes,
             state.streams[stream].handle);
    } else if (how == 1) {
        CALL(cuMemsetD16Async, block.address, static_cast<unsigned short>(value), block.bytes / 2,
             state.streams[stream].handle);
    } else if (how == 2) {
        CALL(cuMemsetD32Async, block.address, value, block.bytes / 4, state.streams[stream].handle);
    } else if (how == 3) {
        std::vector<unsigned> words(block.bytes / 4);
        for (size_t index = 0; index < words.size(); ++index) words[index] = value + 7 * index;
        CALL(cuMemcpyHtoDAsync_v2, block.address, words.data(), block.bytes,
             state.streams[stream].handle);
    } else if (how == 4 && !state.stack.empty()) {
        const int usual = default_stream(state);
        order(state, block, usual);
        CALL(cuMemsetD32_v2, block.address, value, block.bytes / 4);
    } else {
        launch_fill(state, stream, {block.address, block.bytes}, value);
    }
}

// What a capture may have too: `stream` has been ordered behind all that is used.
inline void run_kernel(State& state, int stream, const std::vector<int>& blocks) {
    const auto any_of = [&]() -> Block& {
        return state.blocks[blocks[state.pick(static_cast<unsigned>(blocks.size()))]];
    };
    const Stream& on = state.streams[stream];
    const Context& context = state.contexts[on.context];
    const Range to = any_range(state, any_of());
    switch (static_cast<Kernel>(state.pick(3))) {
        case Kernel::fill:
            launch_fill(state, stream, to, state.random());
            break;
        case Kernel::add: {
            const Block &one = any_of(), &two = any_of();
            const size_t words = std::min({to.bytes, one.bytes, two.bytes}) / 4;
            launch(state, context.add, on.handle,
                   {{to.address, 8}, {one.address, 8}, {two.address, 8}, {words, 8}});
            break;
        }
        default:
            launch(state, context.sweep, on.handle,
                   {{to.address, 8}, {to.bytes / 4, 8}, {state.pick(3) + 1, 4}});
    }
}

inline std::vector<int> some_blocks(State& state, int device, unsigned most) {
    std::vector<int> found;
    for (unsigned index = 0; index < most; ++index) {
        const int block = any_block(state, device);
        if (block >= 0) found.push_back(block);
    }
    return found;
}

inline void work(State& state) {
    const int device = static_cast<int>(state.pick(state.devices));
    const std::vector<int> blocks = some_blocks(state, device, 3);
    const int stream = blocks.empty() ? -1 : any_stream(state, device);
    if (stream < 0) return;
    for (const int each : blocks) order(state, state.blocks[each], stream);
    for (unsigned times = state.pick(3) + 1; times > 0; --times) run_kernel(state, stream, blocks);
}

// Sets of a range or of rows, in a stream or in none.
inline void set(State& state) {
    const int device = static_cast<int>(state.pick(state.devices));
    const int index = any_block(state, device);
    const int stream = index < 0 ? -1 : any_stream(state, device);
    if (stream < 0) return;
    Block& block = state.blocks[index];
    const bool now = state.one_in(3) && !state.streams[stream].own;
    const int on = now ? default_stream(state) : stream;
    order(state, block, on);
    const CUstream handle = state.streams[on].handle;
    const unsigned value = state.random();
    if (block.bytes >= 4096 && state.one_in(2)) {
        const size_t pitch = block.pitch != 0 ? block.pitch : 1024;
        const size_t width = (state.pick(static_cast<unsigned>(pitch / 4)) + 1) * 4;
        const size_t height =
            state.pick(static_cast<unsigned>(std::min<size_t>(block.bytes / pitch, 64))) + 1;
        const auto byte = static_cast<unsigned char>(value);
        const auto half = static_cast<unsigned short>(value);
        switch (state.pick(3) + (now ? 3 : 0)) {
            case 0:
                CALL(cuMemsetD2D8Async, block.address, pitch, byte, width, height, handle);
                break;
            case 1:
                CALL(cuMemsetD2D16Async, block.address, pitch, half, width / 2, height, handle);
                break;
            case 2:
                CALL(cuMemsetD2D32Async, block.address, pitch, value, width / 4, height, handle);
                break;
            case 3:
                CALL(cuMemsetD2D8_v2, block.address, pitch, byte, width, height);
                break;
            case 4:
                CALL(cuMemsetD2D16_v2, block.address, pitch, half, width / 2, height);
                break;
            default:
                CALL(cuMemsetD2D32_v2, block.address, pitch, value, width / 4, height);
        }
        return;
    }
    const Range range = any_range(state, block);
    const auto byte = static_cast<unsigned char>(value);
    const auto half = static_cast<unsigned short>(value);
    switch (state.pick(3) + (now ? 3 : 0)) {
        case 0:
            CALL(cuMemsetD8Async, range.address, byte, range.bytes, handle);
            break;
        case 1:
            CALL(cuMemsetD16Async, range.address, half, range.bytes / 2, handle);
            break;
        case 2:
            CALL(cuMemsetD32Async, range.address, value, range.bytes / 4, handle);
            break;
        case 3:
            CALL(cuMemsetD8_v2, range.address, byte, range.bytes);
            break;
        case 4:
            CALL(cuMemsetD16_v2, range.address, half, range.bytes / 2);
            break;
        default:
            CALL(cuMemsetD32_v2, range.address, value, range.bytes / 4);
    }
}

// A value is written, and waited for behind that in the same stream.
inline void write_value(State& state) {
    const int device = static_cast<int>(state.pick(state.devices));
    const int index = any(state, state.blocks, [&](const Block& each) {
        return each.device == device && each.bytes >= 16 && each.kind != Kind::managed;
    });
    const int stream = index < 0 ? -1 : any_stream(state, device);
    if (stream < 0) return;
    Block& block = state.blocks[index];
    order(state, block, stream);
    const CUstream handle = state.streams[stream].handle;
    const unsigned value = state.random();
    const CUdeviceptr address = (block.address + 7) & ~CUdeviceptr{7};
    if (state.one_in(2)) {
        CALL(cuStreamWriteValue32_v2, handle, address, value, 0);
        if (state.one_in(2)) CALL(cuStreamWaitValue32_v2, handle, address, value, 1);
    } else {
        CALL(cuStreamWriteValue64_v2, handle, address, value, 0);
        if (state.one_in(2)) CALL(cuStreamWaitValue64_v2, handle, address, value, 0);
    }
}

// Calls that do nothing but say what is wrong.
inline void misuse_work(State& state) {
    if (state.stack.empty()) return;
    const Context& context = state.contexts[state.current()];
    unsigned long long word = 0;
    void* parameters[] = {&word, &word, &word, &word};
    CUfunction fill = context.fill;
    switch (state.pick(7)) {
        case 0:
            CALL(cuLaunchKernel, fill, 1, 1, 1, 2048, 1, 1, 0, nullptr, parameters, nullptr);
            break;
        case 1:
            CALL(cuLaunchKernel, fill, 0, 1, 1, 32, 1, 1, 0, nullptr, parameters, nullptr);
            break;
        case 2:
            CALL(cuLaunchKernel, fill, 1, 1, 1, 32, 1, 1, 0, nullptr, nullptr, nullptr);
            break;
        case 3: {
            const int other =
                any(state, state.contexts, [&](const Context& each) { return each.fill != fill; });
            if (other < 0) return;
            CALL(cuLaunchKernel, state.contexts[other].fill, 1, 1, 1, 32, 1, 1, 0, nullptr,
                 parameters, nullptr);
            break;
        }
        case 4:
            CALL(cuMemsetD32_v2, 2, 0, 4);
            break;
        case 5:
            CALL(cuMemcpyDtoD_v2, 0x1000, 0x2000, 4);
            break;
        default:
            CALL(cuMemcpyHtoD_v2, 0, &word, 8);
    }
}

}  // namespace fuzz
