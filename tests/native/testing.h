// A test harness for one-file test programs: TEST(name) { CHECK(expression); }
//
// CHECK and CHECK_EQUAL note a failure and go on, from any thread. REQUIRE ends the test at once;
// call it on the test's own thread only. The program runs every test, or those whose names contain
// its first argument, and exits with 1 if any failed or none ran. It holds main: include it once.
#ifndef VRAMKIT_TESTS_NATIVE_TESTING_H
#define VRAMKIT_TESTS_NATIVE_TESTING_H

#include <atomic>
#include <cstdio>
#include <exception>
#include <sstream>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

namespace testing {

struct Test {
    const char* name;
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

inline bool add(const char* name, void (*body)()) {
    tests().push_back({name, body});
    return true;
}

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

inline bool passes(const Test& test) {
    failures_in_test() = 0;
    try {
        test.body();
    } catch (const RequirementFailed&) {
    } catch (const std::exception& error) {
        note(false, test.name, 0, std::string("threw ") + error.what());
    } catch (...) {
        note(false, test.name, 0, "threw something that is no std::exception");
    }
    return failures_in_test() == 0;
}

}  // namespace testing

#define TEST(name)                                                                      \
    static void test_##name();                                                          \
    [[maybe_unused]] static const bool added_##name = testing::add(#name, test_##name); \
    static void test_##name()

#define CHECK(expression) \
    testing::note(static_cast<bool>(expression), __FILE__, __LINE__, #expression)

#define CHECK_EQUAL(left, right) \
    testing::check_equal((left), (right), __FILE__, __LINE__, #left " == " #right)

#define REQUIRE(expression)                                         \
    do {                                                            \
        if (!CHECK(expression)) throw testing::RequirementFailed(); \
    } while (false)

int main(int argument_count, char** arguments) {
    const std::string_view wanted = argument_count > 1 ? arguments[1] : "";
    int passed = 0;
    int failed = 0;
    for (const testing::Test& test : testing::tests()) {
        if (std::string_view(test.name).find(wanted) == std::string_view::npos) continue;
        if (testing::passes(test)) {
            ++passed;
        } else {
            ++failed;
            std::fprintf(stderr, "failed: %s\n", test.name);
        }
    }
    std::printf("%d passed, %d failed\n", passed, failed);
    return failed == 0 && passed > 0 ? 0 : 1;
}

#endif
