// Rules of stream order that a test build can break one at a time: a checker that reports nothing
// proves nothing until it has reported a known fault. In the library that users get no rule can be
// broken, and is_broken() costs nothing.
#pragma once

#ifdef VRAMKIT_BREAKABLE_RULES
#include <cstdlib>
#include <cstring>
#endif

namespace vramkit {

enum class Rule {
#define VRAMKIT_RULE(name) name,
#include "base/rules.def"
#undef VRAMKIT_RULE
};

#ifdef VRAMKIT_BREAKABLE_RULES
inline const char* name_of(Rule rule) {
    switch (rule) {
#define VRAMKIT_RULE(name) \
    case Rule::name:       \
        return #name;
#include "base/rules.def"
#undef VRAMKIT_RULE
    }
    return "";
}

// VRAMKIT_BROKEN_RULE in the environment names the rule to break.
inline bool is_broken(Rule rule) {
    static const char* const chosen = std::getenv("VRAMKIT_BROKEN_RULE");
    return chosen != nullptr && std::strcmp(chosen, name_of(rule)) == 0;
}
#else
constexpr bool is_broken(Rule) { return false; }
#endif

}  // namespace vramkit
