// Writes JSON text: nested objects and arrays; commas are added automatically.
#pragma once

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

namespace vramkit {

class Json {
  public:
    Json& begin_object() { return open('{'); }
    Json& end_object() { return close('}'); }
    Json& begin_array() { return open('['); }
    Json& end_array() { return close(']'); }

    Json& key(std::string_view name) {
        separate();
        quote(name);
        text_ += ':';
        fresh_ = true;
        return *this;
    }
    Json& value(std::string_view text) {
        separate();
        quote(text);
        return *this;
    }
    Json& value(const char* text) { return value(std::string_view(text)); }
    Json& value(bool truth) { return raw(truth ? "true" : "false"); }
    Json& value(std::uint64_t number) { return raw(std::to_string(number)); }
    Json& value(int number) { return raw(std::to_string(number)); }
    // The shortest text that reads back as the same number; null for infinity and NaN.
    Json& value(double number) {
        if (!std::isfinite(number)) return null();
        char digits[32];
        const auto end = std::to_chars(digits, digits + sizeof digits, number).ptr;
        return raw(std::string_view(digits, static_cast<std::size_t>(end - digits)));
    }
    Json& value(const std::vector<double>& numbers) {
        begin_array();
        for (const double number : numbers) value(number);
        return end_array();
    }
    Json& null() { return raw("null"); }
    // Text that is JSON already.
    Json& raw(std::string_view text) {
        separate();
        text_ += text;
        return *this;
    }

    template <class Value>
    Json& field(std::string_view name, const Value& given) {
        key(name);
        return value(given);
    }

    const std::string& text() const { return text_; }

  private:
    Json& open(char bracket) {
        separate();
        text_ += bracket;
        fresh_ = true;
        return *this;
    }
    Json& close(char bracket) {
        text_ += bracket;
        fresh_ = false;
        return *this;
    }
    void separate() {
        if (!fresh_) text_ += ',';
        fresh_ = false;
    }
    void quote(std::string_view text) {
        text_ += '"';
        for (const char c : text) {
            if (c == '"' || c == '\\') {
                text_ += '\\';
                text_ += c;
            } else if (static_cast<unsigned char>(c) < 0x20) {
                char escape[8];
                std::snprintf(escape, sizeof escape, "\\u%04x", static_cast<unsigned char>(c));
                text_ += escape;
            } else {
                text_ += c;
            }
        }
        text_ += '"';
    }

    std::string text_;
    bool fresh_ = true;  // the next value is the first of its object or array
};

}  // namespace vramkit
