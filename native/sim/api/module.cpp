// Exported calls: modules, of which only ours load, and launches of the built-in kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "sim/api/call.h"
#include "sim/api/limits.h"

using namespace vramkit::sim;

namespace {

struct Geometry {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
    bool cooperative = false;
};

// Blocks of a function that a multiprocessor holds at once. Registers never are what limits them.
unsigned blocks_on_multiprocessor(const Profile& profile, const Function& function,
                                  std::uint64_t threads, std::uint64_t shared_bytes) {
    if (threads > kMostThreadsInBlock || shared_bytes > function.shared_bytes) return 0;
    const std::uint64_t warps = (threads + kThreadsOfWarp - 1) / kThreadsOfWarp;
    const std::uint64_t by_threads =
        static_cast<unsigned>(profile.threads_per_multiprocessor) / (warps * kThreadsOfWarp);
    const std::uint64_t by_memory =
        kSharedBytesOfMultiprocessor / (shared_bytes + kSharedBytesOfSystem);
    return static_cast<unsigned>(
        std::min<std::uint64_t>({by_threads, by_memory, kMostBlocksOnMultiprocessor}));
}

CUresult load(Call& call, CUmodule* module, const void* image) {
    if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const char* text = static_cast<const char*>(image);
    if (std::strncmp(text, kModuleMark.data(), kModuleMark.size()) != 0) {
        // Text with PTX's opening words is code that the simulated card cannot run; the rest is
        // noise.
        return std::strstr(text, ".version") != nullptr ? CUDA_ERROR_INVALID_PTX
                                                        : CUDA_ERROR_INVALID_IMAGE;
    }
    *module = reinterpret_cast<CUmodule>(call.machine().make_module(&call.context()));
    return CUDA_SUCCESS;
}

// The arguments, by pointers to each or as one packed buffer.
CUresult read_arguments(const BuiltinKernel& kernel, void** parameters, void** extra,
                        Arguments& arguments) {
    if (parameters != nullptr) {
        for (std::size_t i = 0; i < kernel.sizes.size() && kernel.sizes[i] > 0; ++i) {
            if (parameters[i] == nullptr) return CUDA_ERROR_INVALID_VALUE;
            std::memcpy(&arguments[i], parameters[i], kernel.sizes[i]);
        }
        return CUDA_SUCCESS;
    }
    if (extra == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const char* buffer = nullptr;
    std::size_t bytes = 0;
    for (; extra[0] != nullptr; extra += 2) {
        if (extra[0] == reinterpret_cast<void*>(1)) buffer = static_cast<const char*>(extra[1]);
        if (extra[0] == reinterpret_cast<void*>(2)) bytes = *static_cast<std::size_t*>(extra[1]);
    }
    std::size_t at = 0;
    for (std::size_t i = 0; i < kernel.sizes.size() && kernel.sizes[i] > 0; ++i) {
        at = (at + kernel.sizes[i] - 1) / kernel.sizes[i] * kernel.sizes[i];
        if (buffer == nullptr || at + kernel.sizes[i] > bytes) return CUDA_ERROR_INVALID_VALUE;
        std::memcpy(&arguments[i], buffer + at, kernel.sizes[i]);
        at += kernel.sizes[i];
    }
    return CUDA_SUCCESS;
}

CUresult launch(Call& call, CUfunction handle, const Geometry& geometry, CUstream stream_handle,
                void** parameters, void** extra) {
    const Function* function = call.machine().find(handle);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    std::shared_ptr<Stream> stream;
    const CUresult found = call.find(stream_handle, stream);
    if (found != CUDA_SUCCESS) return found;
    if (stream->context != function->module->context) return CUDA_ERROR_INVALID_HANDLE;
    double blocks = 1, threads = 1;
    for (int axis = 0; axis < 3; ++axis) {
        blocks *= geometry.grid[axis];
        threads *= geometry.block[axis];
    }
    if (blocks == 0 || threads == 0 || threads > kMostThreadsInBlock ||
        geometry.grid[0] > kMostBlocks || geometry.grid[1] > 65535 || geometry.grid[2] > 65535 ||
        geometry.block[2] > 64 || geometry.shared_bytes > function->shared_bytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Profile& profile = call.machine().profile();
    const unsigned resident = blocks_on_multiprocessor(
        profile, *function, static_cast<std::uint64_t>(threads), geometry.shared_bytes);
    if (geometry.cooperative && blocks > static_cast<double>(resident) * profile.multiprocessors) {
        return CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE;
    }
    Arguments arguments{};
    const CUresult read = read_arguments(*function->kernel, parameters, extra, arguments);
    if (read != CUDA_SUCCESS) return read;

    Machine& machine = call.machine();
    Operation* operation = call.prepare(Kind::kernel, Lane::compute, stream);
    operation->kernel = function->kernel;
    operation->arguments = arguments;
    operation->latency = profile.kernels.launch_latency_ns;
    const double capacity =
        static_cast<double>(profile.multiprocessors) * profile.threads_per_multiprocessor;
    const double waves = std::max(1.0, blocks * threads / capacity);
    operation->demand = std::min(1.0, blocks * threads / capacity);
    const bool spins = function->kernel->sizes[1] == 0;
    // Blocks of a spin each take the time; the others divide a fixed amount of work between them.
    operation->wave = std::max(profile.kernels.minimum_duration_ns,
                               function->kernel->duration_ns(arguments, profile));
    operation->work = operation->wave * (spins ? std::ceil(waves) : 1.0);
    machine.order_for_checker(*stream);
    for (const Touch& touch : function->kernel->touches(arguments)) {
        machine.touch(*stream, touch.address, touch.bytes, touch.use, call.site());
    }
    return call.enqueue(operation);
}

CUresult occupancy(Call& call, int* blocks, CUfunction handle, int block_threads,
                   std::size_t shared_bytes, unsigned flags) {
    if (blocks == nullptr || block_threads <= 0 ||
        (flags & ~unsigned{CU_OCCUPANCY_DISABLE_CACHING_OVERRIDE}) != 0) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    const Function* function = call.machine().find(handle);
    if (function == nullptr) return CUDA_ERROR_INVALID_HANDLE;
    *blocks = static_cast<int>(blocks_on_multiprocessor(call.machine().profile(), *function,
                                                        static_cast<std::uint64_t>(block_threads),
                                                        shared_bytes));
    return CUDA_SUCCESS;
}

}  // namespace

SIM_EXPORT CUresult cuModuleLoadData(CUmodule* module, const void* image) {
    return run(CallId::cuModuleLoadData, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) { return load(call, module, image); });
}

SIM_EXPORT CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int,
                                       CUjit_option*, void**) {
    return run(CallId::cuModuleLoadDataEx, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) { return load(call, module, image); });
}

SIM_EXPORT CUresult cuModuleUnload(CUmodule module) {
    return run(CallId::cuModuleUnload, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        Module* found = call.machine().find(module);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        call.machine().destroy_module(found);
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
    return run(CallId::cuModuleGetFunction, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (function == nullptr || name == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Module* found = call.machine().find(module);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        const BuiltinKernel* kernel = find_kernel(name);
        if (kernel == nullptr) return CUDA_ERROR_NOT_FOUND;
        *function = reinterpret_cast<CUfunction>(call.machine().function(found, kernel));
        return CUDA_SUCCESS;
    });
}

SIM_EXPORT CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                       CUfunction function) {
    return run(CallId::cuFuncGetAttribute, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
        const Function* found = call.machine().find(function);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        const Profile& profile = call.machine().profile();
        switch (attribute) {
            case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
                *value = kMostThreadsInBlock;
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_NUM_REGS:
                *value = 32;
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_PTX_VERSION:
            case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
                *value = profile.compute_major * 10 + profile.compute_minor;
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
                *value = static_cast<int>(found->shared_bytes);
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
                *value = found->carveout;
                return CUDA_SUCCESS;
            default:
                *value = 0;
                return CUDA_SUCCESS;
        }
    });
}

SIM_EXPORT CUresult cuFuncSetAttribute(CUfunction function, CUfunction_attribute attribute,
                                       int value) {
    return run(CallId::cuFuncSetAttribute, SIM_RETURN_ADDRESS, Needs::context, 0, [&](Call& call) {
        Function* found = call.machine().find(function);
        if (found == nullptr) return CUDA_ERROR_INVALID_HANDLE;
        switch (attribute) {
            case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
                if (value < 0 || static_cast<unsigned>(value) > kMostSharedBytesAllowed) {
                    return CUDA_ERROR_INVALID_VALUE;
                }
                found->shared_bytes = static_cast<unsigned>(value);
                return CUDA_SUCCESS;
            case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
                if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
                found->carveout = value;
                return CUDA_SUCCESS;
            default:
                // The others only say what a function is like, or are about clusters.
                return attribute < CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
                           ? CUDA_ERROR_INVALID_VALUE
                           : CUDA_ERROR_NOT_SUPPORTED;
        }
    });
}

// A preference, without effect here.
SIM_EXPORT CUresult cuFuncSetCacheConfig(CUfunction function, CUfunc_cache preference) {
    return run(CallId::cuFuncSetCacheConfig, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   if (call.machine().find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
                   return preference <= CU_FUNC_CACHE_PREFER_EQUAL ? CUDA_SUCCESS
                                                                   : CUDA_ERROR_INVALID_VALUE;
               });
}

// The built-in kernels have no variables.
SIM_EXPORT CUresult cuModuleGetGlobal_v2(CUdeviceptr* pointer, size_t* bytes, CUmodule module,
                                         const char* name) {
    return run(CallId::cuModuleGetGlobal_v2, SIM_RETURN_ADDRESS, Needs::context, 0,
               [&](Call& call) {
                   if ((pointer == nullptr && bytes == nullptr) || name == nullptr) {
                       return CUDA_ERROR_INVALID_VALUE;
                   }
                   return call.machine().find(module) == nullptr ? CUDA_ERROR_INVALID_HANDLE
                                                                 : CUDA_ERROR_NOT_FOUND;
               });
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction function,
                                                                int block_threads,
                                                                size_t shared_bytes) {
    return run(CallId::cuOccupancyMaxActiveBlocksPerMultiprocessor, SIM_RETURN_ADDRESS,
               Needs::context, 0, [&](Call& call) {
                   return occupancy(call, blocks, function, block_threads, shared_bytes, 0);
               });
}

SIM_EXPORT CUresult cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, CUfunction function, int block_threads, size_t shared_bytes, unsigned int flags) {
    return run(CallId::cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags, SIM_RETURN_ADDRESS,
               Needs::context, 0, [&](Call& call) {
                   return occupancy(call, blocks, function, block_threads, shared_bytes, flags);
               });
}

SIM_EXPORT CUresult cuLaunchKernel(CUfunction function, unsigned int grid_x, unsigned int grid_y,
                                   unsigned int grid_z, unsigned int block_x, unsigned int block_y,
                                   unsigned int block_z, unsigned int shared_bytes, CUstream stream,
                                   void** parameters, void** extra) {
    return run(CallId::cuLaunchKernel, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        const Geometry geometry{
            {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes};
        return launch(call, function, geometry, stream, parameters, extra);
    });
}

SIM_EXPORT CUresult cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction function,
                                     void** parameters, void** extra) {
    return run(CallId::cuLaunchKernelEx, SIM_RETURN_ADDRESS, Needs::stream, 0, [&](Call& call) {
        if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
        Geometry geometry{{config->gridDimX, config->gridDimY, config->gridDimZ},
                          {config->blockDimX, config->blockDimY, config->blockDimZ},
                          config->sharedMemBytes};
        if (config->numAttrs != 0 && config->attrs == nullptr) return CUDA_ERROR_INVALID_VALUE;
        for (unsigned i = 0; i < config->numAttrs; ++i) {
            const CUlaunchAttribute& attribute = config->attrs[i];
            if (attribute.id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) {
                geometry.cooperative = attribute.value.cooperative != 0;
            } else if (attribute.id != CU_LAUNCH_ATTRIBUTE_IGNORE) {
                // Clusters and the like are not simulated.
                return CUDA_ERROR_NOT_SUPPORTED;
            }
        }
        return launch(call, function, geometry, config->hStream, parameters, extra);
    });
}

SIM_EXPORT CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned int grid_x,
                                              unsigned int grid_y, unsigned int grid_z,
                                              unsigned int block_x, unsigned int block_y,
                                              unsigned int block_z, unsigned int shared_bytes,
                                              CUstream stream, void** parameters) {
    return run(CallId::cuLaunchCooperativeKernel, SIM_RETURN_ADDRESS, Needs::stream, 0,
               [&](Call& call) {
                   const Geometry geometry{
                       {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared_bytes, true};
                   return launch(call, function, geometry, stream, parameters, nullptr);
               });
}

SIM_PER_THREAD(cuLaunchKernel, ptsz,
               (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned n, CUstream s, void** p, void** e),
               (f, gx, gy, gz, bx, by, bz, n, s, p, e))
SIM_PER_THREAD(cuLaunchKernelEx, ptsz, (const CUlaunchConfig* c, CUfunction f, void** p, void** e),
               (c, f, p, e))
SIM_PER_THREAD(cuLaunchCooperativeKernel, ptsz,
               (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned n, CUstream s, void** p),
               (f, gx, gy, gz, bx, by, bz, n, s, p))
