// Reader of the part of TOML that profiles use: sections, numbers, strings, booleans, arrays of
// numbers.
//
// Strict on purpose: whatever is outside that part (dotted or quoted keys, dates, inline tables,
// literal strings, inf and nan) is an error that says what was expected, never a guess. Numbers are
// doubles, so whole numbers are exact up to 2^53. Nothing here depends on the locale.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

namespace vramkit::sim::toml {

// One value. An array holds numbers and arrays only.
struct Value {
    std::variant<double, std::string, bool, std::vector<Value>> data;
    int line = 0;
    std::string source;  // as written in the file, for messages

    const double* number() const { return std::get_if<double>(&data); }
    const std::string* text() const { return std::get_if<std::string>(&data); }
    const std::vector<Value>* array() const { return std::get_if<std::vector<Value>>(&data); }
};

struct Entry {
    std::string key;
    Value value;
    int line = 0;
};

// Keys of one section in the order of the file. The keys before any header are the section "".
struct Section {
    std::string name;
    std::vector<Entry> entries;
    int line = 0;

    const Entry* find(std::string_view key) const;
};

// Section names are unique, and so are the keys within a section. The section "" always exists and
// is first.
struct Document {
    std::vector<Section> sections;

    const Section* find(std::string_view name) const;
};

struct Error {
    int line = 0;  // counted from 1
    std::string message;
};

std::variant<Document, Error> parse(std::string_view text);

}  // namespace vramkit::sim::toml
