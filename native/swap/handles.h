// Handles of the program, and the addresses at which it has mapped them. Pure bookkeeping: no
// driver calls.
//
// A handle is memory that the program made with cuMemCreate, and maps itself at addresses of its
// own. It is named by its home address, at which it is mapped whenever it is on the card.
#pragma once

#include <cstdint>
#include <iterator>
#include <map>
#include <vector>

namespace vramkit::swap {

struct Handle {
    std::uint64_t bytes = 0;
    std::uint64_t references = 1;  // of the program
    std::uint64_t mappings = 0;    // with those that are ending
};

// The whole of a handle, at an address of the program.
struct Mapping {
    std::uint64_t address = 0;
    std::uint64_t bytes = 0;
    std::uint64_t handle = 0;
    // The driver refused to unmap some of it; for the program it is gone, or never was.
    bool ending = false;
};

class Handles {
  public:
    void add(std::uint64_t id, std::uint64_t bytes) { handles_.emplace(id, Handle{bytes}); }
    void remove(std::uint64_t id) { handles_.erase(id); }
    // Null: there is none.
    Handle* find(std::uint64_t id);
    const Handle* find(std::uint64_t id) const;

    // The addresses must be free.
    void map(std::uint64_t id, std::uint64_t address);
    void unmap(std::uint64_t address);
    // The mapping around an address; null: there is none.
    Mapping* around(std::uint64_t address);
    const Mapping* around(std::uint64_t address) const;
    // Whether a mapping begins before the range and reaches into it, or begins in it and ends
    // behind it.
    bool is_cut_by(std::uint64_t address, std::uint64_t bytes) const;
    // Mappings that have bytes of the range, by address.
    std::vector<Mapping*> in(std::uint64_t address, std::uint64_t bytes);
    // visit(Mapping&), without a list.
    template <typename Visit>
    void each_in(std::uint64_t address, std::uint64_t bytes, Visit visit) {
        if (bytes == 0 || mappings_.empty()) return;
        auto next = mappings_.upper_bound(address);
        if (next != mappings_.begin()) {
            Mapping& before = std::prev(next)->second;
            if (address - before.address < before.bytes) visit(before);
        }
        for (; next != mappings_.end() && next->first - address < bytes; ++next) {
            visit(next->second);
        }
    }
    bool is_any_in(std::uint64_t address, std::uint64_t bytes) const;

    const std::map<std::uint64_t, Handle>& all() const { return handles_; }
    const std::map<std::uint64_t, Mapping>& mappings() const { return mappings_; }

  private:
    std::map<std::uint64_t, Handle> handles_;    // by id
    std::map<std::uint64_t, Mapping> mappings_;  // by address
};

}  // namespace vramkit::swap
