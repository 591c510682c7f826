// Writes JSON text: objects and arrays by nesting, commas by themselves.
#pragma once

#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "gpu.h"

namespace bench {

class Json {
  public:
    Json& open(char bracket);
    Json& close(char bracket);
    Json& key(std::string_view name);
    Json& value(std::string_view text);
    Json& value(const char* text) { return value(std::string_view(text)); }
    Json& value(double number);
    Json& value(int number) { return value(static_cast<double>(number)); }
    Json& value(bool truth);
    Json& value(const std::vector<double>& numbers);
    // Text that is JSON already.
    Json& raw(std::string_view json);

    template <class Value>
    Json& member(std::string_view name, const Value& content) {
        return key(name).value(content);
    }
    const std::string& text() const { return text_; }

  private:
    void separate();

    std::string text_;
    bool first_ = true;
};

// Replaces the file as a whole; a reader never sees half of it. Throws Failure.
void write_file(const std::string& path, std::string_view text);

inline void Json::separate() {
    if (!first_) text_ += ",";
    first_ = false;
}

inline Json& Json::open(char bracket) {
    separate();
    text_ += bracket;
    first_ = true;
    return *this;
}

inline Json& Json::close(char bracket) {
    text_ += bracket;
    first_ = false;
    return *this;
}

inline Json& Json::key(std::string_view name) {
    value(name);
    text_ += ":";
    first_ = true;
    return *this;
}

inline Json& Json::value(std::string_view text) {
    separate();
    text_ += '"';
    for (const char letter : text) {
        const auto code = static_cast<unsigned char>(letter);
        if (letter == '"' || letter == '\\') {
            text_ += '\\';
            text_ += letter;
        } else if (code < 0x20) {
            char escaped[8];
            std::snprintf(escaped, sizeof escaped, "\\u%04x", code);
            text_ += escaped;
        } else {
            text_ += letter;
        }
    }
    text_ += '"';
    return *this;
}

inline Json& Json::value(double number) {
    if (!std::isfinite(number)) return raw("null");
    char digits[40];
    std::snprintf(digits, sizeof digits, "%.10g", number);
    return raw(digits);
}

inline Json& Json::value(bool truth) { return raw(truth ? "true" : "false"); }

inline Json& Json::value(const std::vector<double>& numbers) {
    open('[');
    for (const double number : numbers) value(number);
    return close(']');
}

inline Json& Json::raw(std::string_view json) {
    separate();
    text_ += json;
    return *this;
}

inline void write_file(const std::string& path, std::string_view text) {
    const std::string draft = path + ".part";
    std::ofstream file(draft, std::ios::binary | std::ios::trunc);
    file << text << '\n';
    file.close();
    if (!file || std::rename(draft.c_str(), path.c_str()) != 0) {
        throw Failure("cannot write " + path + ": " + std::strerror(errno));
    }
}

}  // namespace bench
