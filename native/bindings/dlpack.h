// The structures of DLPack that an export fills, by the layout of its versions 0.x and 1.x.
#pragma once

#include <cstdint>

namespace vramkit::dlpack {

inline constexpr int32_t kCuda = 2;
inline constexpr uint8_t kUnsigned = 1;

struct Device {
    int32_t type;
    int32_t id;
};

struct DataType {
    uint8_t code;
    uint8_t bits;
    uint16_t lanes;
};

struct Tensor {
    void* data;
    Device device;
    int32_t dimensions;
    DataType type;
    int64_t* shape;
    int64_t* strides;
    uint64_t byte_offset;
};

// Up to version 0.x: a capsule named "dltensor".
struct Managed {
    static constexpr const char* kName = "dltensor";
    Tensor tensor;
    void* context;
    void (*deleter)(Managed*);
};

// From version 1.0 on: a capsule named "dltensor_versioned".
struct ManagedVersioned {
    static constexpr const char* kName = "dltensor_versioned";
    uint32_t major;
    uint32_t minor;
    void* context;
    void (*deleter)(ManagedVersioned*);
    uint64_t flags;
    Tensor tensor;
};

}  // namespace vramkit::dlpack
