// Rules that keep streams apart, each of which a test library can break: a checker that stays
// silent proves nothing until it was seen to speak. In the library that users get, nothing is ever
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

// The rule that the environment names is broken.
inline bool is_broken(Rule rule) {
    static const char* const chosen = std::getenv("VRAMKIT_BROKEN_RULE");
    return chosen != nullptr && std::strcmp(chosen, name_of(rule)) == 0;
}
#else
constexpr bool is_broken(Rule) { return false; }
#endif

}  // namespace vramkit
