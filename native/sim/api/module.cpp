// Exported calls: modules, of which only ours load, and launches of the built-in kernels.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <string_view>

#include "sim/api/call.h"

using namespace vramkit::sim;

namespace {

constexpr unsigned kMostThreadsInBlock = 1024;
constexpr unsigned kMostBlocks = 2147483647;
constexpr unsigned kMostSharedBytes = 48 * 1024;

struct Geometry {
    unsigned grid[3];
    unsigned block[3];
    unsigned shared_bytes;
};

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
        geometry.block[2] > 64 || geometry.shared_bytes > kMostSharedBytes) {
        return CUDA_ERROR_INVALID_VALUE;
    }
    Arguments arguments{};
    const CUresult read = read_arguments(*function->kernel, parameters, extra, arguments);
    if (read != CUDA_SUCCESS) return read;

    Machine& machine = call.machine();
    const Profile& profile = machine.profile();
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
        if (call.machine().find(function) == nullptr) return CUDA_ERROR_INVALID_HANDLE;
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
            default:
                *value = 0;
                return CUDA_SUCCESS;
        }
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
        // Clusters, cooperative launches and the like are not simulated.
        if (config->numAttrs != 0) return CUDA_ERROR_NOT_SUPPORTED;
        const Geometry geometry{{config->gridDimX, config->gridDimY, config->gridDimZ},
                                {config->blockDimX, config->blockDimY, config->blockDimZ},
                                config->sharedMemBytes};
        return launch(call, function, geometry, config->hStream, parameters, extra);
    });
}

SIM_PER_THREAD(cuLaunchKernel, ptsz,
               (CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                unsigned bz, unsigned n, CUstream s, void** p, void** e),
               (f, gx, gy, gz, bx, by, bz, n, s, p, e))
SIM_PER_THREAD(cuLaunchKernelEx, ptsz, (const CUlaunchConfig* c, CUfunction f, void** p, void** e),
               (c, f, p, e))
