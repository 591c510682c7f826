// A test harness: TEST(name) { CHECK(expression); }
//
// CHECK and CHECK_EQUAL note a failure and go on, from any thread. REQUIRE ends the test at once;
// call it on the test's own thread only. The name of a test is that of its file, a dot, and its
// own: test_clock.set_takes_the_rate_of_sets. main is in testing.cpp.
#ifndef VRAMKIT_TESTS_NATIVE_TESTING_H
#define VRAMKIT_TESTS_NATIVE_TESTING_H

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace testing {

struct Test {
    std::string name;
    void (*body)();
};

struct RequirementFailed {};

inline std::vector<Test>& tests() {
    static std::vector<Test> all;
    return all;
}

inline std::atomic<int>& failures_in_test() {
    static std::atomic<int> count{0};
    return count;
}

inline bool add(std::string_view file, const char* name, void (*body)()) {
    file.remove_prefix(file.rfind('/') + 1);
    tests().push_back({std::string(file.substr(0, file.rfind('.'))) + "." + name, body});
    return true;
}

// The long versions of tests, for `make soak`: VRAMKIT_SOAK=1.
inline bool soaking() {
    static const bool on = [] {
        const char* const given = std::getenv("VRAMKIT_SOAK");
        return given != nullptr && std::string_view(given) == "1";
    }();
    return on;
}
// How many rounds, steps or seeds a random test takes.
inline int rounds(int quick, int soak) { return soaking() ? soak : quick; }

// Under ThreadSanitizer memory that is mapped again and again costs thirty times as much: tests
// that do that take one of so many steps there.
#ifdef __SANITIZE_THREAD__
inline constexpr int kFewer = 4;
#else
inline constexpr int kFewer = 1;
#endif

inline bool note(bool passed, const char* file, int line, const std::string& what) {
    if (!passed) {
        failures_in_test().fetch_add(1);
        std::fprintf(stderr, "%s:%d: not so: %s\n", file, line, what.c_str());
    }
    return passed;
}

template <typename Value>
std::string shown(const Value& value) {
    std::ostringstream text;
    if constexpr (std::is_enum_v<Value>) {
        text << +static_cast<std::underlying_type_t<Value>>(value);
    } else if constexpr (requires { text << value; }) {
        text << value;
    } else {
        text << "(" << sizeof(value) << " bytes)";
    }
    return text.str();
}

template <typename Left, typename Right>
bool check_equal(const Left& left, const Right& right, const char* file, int line,
                 const char* expression) {
    if (left == right) return true;
    return note(false, file, line, expression + (": " + shown(left)) + " and " + shown(right));
}

}  // namespace testing

#define TEST(name)                                                                                \
    static void test_##name();                                                                    \
    [[maybe_unused]] static const bool added_##name = testing::add(__FILE__, #name, test_##name); \
    static void test_##name()

#define CHECK(expression) \
    testing::note(static_cast<bool>(expression), __FILE__, __LINE__, #expression)

#define CHECK_EQUAL(left, right) \
    testing::check_equal((left), (right), __FILE__, __LINE__, #left " == " #right)

#define REQUIRE(expression)                                         \
    do {                                                            \
        if (!CHECK(expression)) throw testing::RequirementFailed(); \
    } while (false)

#endif
