// Call sites: where in the program work was issued. A return address and, where asked for, the
// stack above it.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace vramkit::sim {

// Where in the program an access was issued.
struct Site {
    std::uint16_t call = 0;       // index into the manifest's calls
    std::uint32_t call_site = 0;  // index into CallSites
    std::uint32_t thread = 0;     // label of the issuing thread
};

enum class Stacks : std::uint8_t { off, python, native };

// The frames above a driver call, one a line, innermost first; empty where there is nothing to
// tell. Takes no lock of ours; python needs the interpreter's lock and takes it for a moment.
std::string capture_stack(Stacks stacks);
// The interpreter of a Python program is on its way out.
bool python_is_finalizing();

class CallSites {
  public:
    // The same call site gets the same number.
    std::uint32_t intern(void* address, std::string stack);

    // "symbol+0x12 (/path/library.so+0xabc)"; looked up once.
    const std::string& location(std::uint32_t call_site) const;
    std::vector<std::string_view> frames(std::uint32_t call_site) const;

  private:
    using Key = std::pair<void*, std::string>;
    std::map<Key, std::uint32_t> numbers_;
    std::vector<const Key*> sites_;
    mutable std::map<void*, std::string> locations_;
};

// The label of the calling thread, made at its first call; and its name.
std::uint32_t thread_label();
std::string thread_name(std::uint32_t label);

}  // namespace vramkit::sim
