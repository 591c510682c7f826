// Binds the codec of packed weights. Arguments are what vramkit.weights.packing made of the user's.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <span>
#include <tuple>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/bind.h"
#include "bindings/buffer.h"
#include "bindings/gil.h"
#include "weights/packing.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

template <typename Element>
std::span<Element> elements(const Buffer& buffer, const char* name) {
    if (buffer.size() % sizeof(Element) != 0 || buffer.address() % alignof(Element) != 0) {
        throw nb::value_error((std::string(name) + " has " + std::to_string(buffer.size()) +
                               " bytes at address " + std::to_string(buffer.address()) +
                               "; weights take 2 bytes each, at even addresses")
                                  .c_str());
    }
    return {reinterpret_cast<Element*>(buffer.address()), buffer.size() / sizeof(Element)};
}

[[noreturn]] void refuse(const Failure& why) { throw nb::value_error(why.message.c_str()); }

class PackingPlan {
  public:
    PackingPlan(const Buffer& buffer, uint64_t chunk_weights, bool always, unsigned threads) {
        const auto given = elements<const uint16_t>(buffer, "weights");
        const GilReleased released;
        chunks_ = weights::plan_packing(given, chunk_weights, always, threads);
    }

    void pack(const Buffer& buffer, const Buffer& out, unsigned threads) const {
        const auto given = elements<const uint16_t>(buffer, "weights");
        const auto stored = elements<std::byte>(out, "out");
        Failure why;
        bool done;
        {
            const GilReleased released;
            done = weights::pack(given, chunks_, stored, threads, why);
        }
        if (!done) refuse(why);
    }

    using Chunk = std::tuple<uint64_t, uint64_t, bool, uint64_t>;
    std::vector<Chunk> chunks() const {
        std::vector<Chunk> all;
        for (const weights::ChunkPlan& each : chunks_) {
            all.emplace_back(each.count, each.exceptions, each.packed, each.stored_bytes());
        }
        return all;
    }

  private:
    std::vector<weights::ChunkPlan> chunks_;
};

std::pair<uint64_t, uint64_t> read(const Buffer& packed) {
    weights::PackedHeader header;
    Failure why;
    if (!weights::read_packed(elements<const std::byte>(packed, "packed"), header, why)) {
        refuse(why);
    }
    return {header.count, header.exceptions};
}

void unpack(const Buffer& packed, uint64_t first, const Buffer& out) {
    const auto from = elements<const std::byte>(packed, "packed");
    const auto to = elements<uint16_t>(out, "out");
    Failure why;
    bool done;
    {
        const GilReleased released;
        done = weights::unpack(from, first, to, why);
    }
    if (!done) refuse(why);
}

uint64_t packed_bytes(uint64_t count, uint64_t exceptions) {
    return weights::PackedLayout(count, exceptions).end;
}

}  // namespace

void bind_packing(nb::module_& module) {
    nb::class_<PackingPlan>(module, "PackingPlan")
        .def(nb::init<const Buffer&, uint64_t, bool, unsigned>(), nb::arg("weights"),
             nb::arg("chunk_weights"), nb::arg("always"), nb::arg("threads"))
        .def("pack", &PackingPlan::pack, nb::arg("weights"), nb::arg("out"), nb::arg("threads"))
        .def_prop_ro("chunks", &PackingPlan::chunks,
                     "(weights, exceptions, packed, stored bytes) of each chunk.");
    def(module, "read_packed", &read, nb::arg("packed"));
    def(module, "unpack_weights", &unpack, nb::arg("packed"), nb::arg("first"), nb::arg("out"));
    def(module, "packed_bytes", &packed_bytes, nb::arg("count"), nb::arg("exceptions"));
    def(module, "unpack_blocks", &weights::unpack_blocks, nb::arg("count"));
    def(module, "patch_blocks", &weights::patch_blocks, nb::arg("exceptions"));
    module.attr("MOST_WEIGHTS_IN_CHUNK") = weights::kMostWeightsInChunk;
    module.attr("DEFAULT_CHUNK_WEIGHTS") = weights::kDefaultChunkWeights;
    module.attr("PACKED_ALIGNMENT") = weights::kPackedAlignment;
    module.attr("UNPACK_THREADS") = weights::kUnpackThreads;
}

}  // namespace vramkit
