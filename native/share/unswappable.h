// Memory that the driver gave to the program itself, and that stays on the card: what of it is
// there, so that the counts of the cards go down again when it is freed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>

#include "driver/table.h"

namespace vramkit::share {

// From any thread, not in a forked child. What host memory does not suffice for is not counted.
class Unswappable {
  public:
    // Never destroyed.
    static Unswappable& get();

    // An allocation, freed with its context.
    void note(CUdevice device, std::uint64_t address, std::uint64_t bytes, CUcontext context);
    void forget(std::uint64_t address);
    void forget_all_of(CUcontext context);
    void forget_all_of(CUdevice device);
    // By the driver, which keeps the context.
    void free_all_of(CUcontext context, const DriverTable& call);

    // A handle of virtual memory: there until its last reference and its last mapping are gone.
    void note_handle(CUdevice device, std::uint64_t handle, std::uint64_t bytes);
    void retain_handle(std::uint64_t handle);
    void release_handle(std::uint64_t handle);
    void note_mapping(std::uint64_t address, std::uint64_t handle);
    void forget_mappings(std::uint64_t address, std::uint64_t bytes);

  private:
    // Counted while it lives.
    class Counted {
      public:
        Counted(CUdevice device, std::uint64_t bytes);
        ~Counted();
        Counted(const Counted&) = delete;
        Counted& operator=(const Counted&) = delete;

        CUdevice device() const { return device_; }

      private:
        void add(std::int64_t bytes) const;

        const CUdevice device_;
        const std::uint64_t bytes_;
    };
    using Share = std::shared_ptr<Counted>;
    struct Allocation {
        Share counted;
        CUcontext context;
    };
    struct Handle {
        Share counted;
        int references;
    };

    std::mutex lock_;
    std::unordered_map<std::uint64_t, Allocation> allocations_;
    std::unordered_map<std::uint64_t, Handle> handles_;
    std::map<std::uint64_t, Share> mappings_;
};

}  // namespace vramkit::share
