// The pool as an allocator of the workloads.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "allocators_bench.h"
#include "base/stream_ref.h"
#include "pool/pool.h"

namespace bench {

[[noreturn]] inline void raise(const vramkit::Failure& why) {
    throw Failure(
        "the pool failed: " + why.message +
        (why.call.empty() ? "" : std::string(why.call) + " " + vramkit::error_name(why.code)));
}

// Streams whose id is known, as those that vramkit itself makes.
struct Known {
    static vramkit::StreamRef ask(const vramkit::DriverTable&, const Lane& lane) {
        return {lane.handle, lane.id, true};
    }
};

// Handles from elsewhere: with each call the driver is asked which stream it is, and whether it is
// being captured.
struct Foreign {
    static vramkit::StreamRef ask(const vramkit::DriverTable& call, const Lane& lane) {
        vramkit::StreamRef stream{lane.handle};
        if (vramkit::identify(call, stream) != CUDA_SUCCESS) throw Failure("this is no stream");
        return stream;
    }
};

template <class Streams>
class Engine {
  public:
    Engine(std::shared_ptr<vramkit::Driver> driver, const Bench& bench,
           const vramkit::pool::Config& config)
        : call_(driver->call()) {
        vramkit::Failure why;
        pool_ = vramkit::pool::Pool::open(std::move(driver), bench.gpu.device(), bench.context,
                                          config, why);
        if (pool_ == nullptr) raise(why);
    }

    std::uint64_t allocate(std::uint64_t bytes, const Lane& lane) {
        vramkit::Failure why;
        const std::uint64_t address = pool_->malloc(bytes, Streams::ask(call_, lane), true, why);
        if (address == 0 && why.kind != vramkit::Failure::Kind::out_of_memory) [[unlikely]]
            raise(why);
        return address;
    }
    void deallocate(std::uint64_t address, std::uint64_t bytes, const Lane& lane) {
        vramkit::Failure why;
        if (!pool_->free(address, bytes, Streams::ask(call_, lane), why)) [[unlikely]]
            raise(why);
    }
    vramkit::pool::Pool& pool() { return *pool_; }

  private:
    const vramkit::DriverTable& call_;
    std::shared_ptr<vramkit::pool::Pool> pool_;
};

}  // namespace bench
