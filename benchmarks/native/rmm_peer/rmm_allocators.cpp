// RMM's memory resources under the workloads by which allocators are compared.
#include "allocators_cases.h"
#include "allocators_program.h"
#include "rmm_resources.h"

namespace {

using namespace bench;

class Peer {
  public:
    Peer(std::unique_ptr<RmmResource> resource, Takes takes)
        : resource_(std::move(resource)), takes_(takes) {}

    std::uint64_t allocate(std::uint64_t bytes, const Lane& lane) {
        return reinterpret_cast<std::uint64_t>(resource_->allocate(bytes, lane.handle));
    }
    void deallocate(std::uint64_t address, std::uint64_t bytes, const Lane& lane) {
        resource_->deallocate(reinterpret_cast<void*>(address), bytes, lane.handle);
    }
    Takes takes() const { return takes_; }

  private:
    std::unique_ptr<RmmResource> resource_;
    Takes takes_;
};

void add_cases(Cases& cases, Bench& bench, const AllocatorOptions&) {
    for (const std::string name : {"pool", "arena", "async", "binning"}) {
        const auto make = [name](std::uint64_t cap) {
            const Takes takes = name == "async" ? Takes::as_needed : Takes::ahead;
            return std::make_unique<Peer>(make_rmm_resource(name, cap), takes);
        };
        add_pair_cases(cases, bench, "rmm_" + name, make);
        add_stream_cases(cases, bench, "rmm_" + name, make);
        add_memory_cases(cases, bench, "rmm_" + name, make);
    }
}

}  // namespace

int main(int count, char** arguments) {
    return allocator_program("rmm_allocators", add_cases, count, arguments);
}
