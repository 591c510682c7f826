// Reads the TOML subset of profiles; see toml.h for what is and is not accepted.
#include "sim/profile/toml.h"

#include <charconv>
#include <cmath>
#include <optional>
#include <system_error>
#include <utility>

namespace vramkit::sim::toml {
namespace {

// Arrays deeper than this are refused, so that no input can exhaust the stack.
constexpr int deepest_array = 8;

// Long tokens are cut in messages.
constexpr std::size_t longest_quote = 40;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }

bool is_bare(char c) { return is_letter(c) || is_digit(c) || c == '_' || c == '-'; }

bool is_control(char c) {
    const auto byte = static_cast<unsigned char>(c);
    return (byte < 0x20 && c != '\t') || byte == 0x7f;
}

std::string quoted(std::string_view token) {
    std::string result = "\"";
    for (const char c : token.substr(0, longest_quote)) result += is_control(c) ? '?' : c;
    if (token.size() > longest_quote) result += "...";
    return result += '"';
}

// Moves over digits with single underscores between them; false where that is not what is there.
bool skip_digits(std::string_view token, std::size_t& at) {
    if (at >= token.size() || !is_digit(token[at])) return false;
    while (at < token.size()) {
        if (is_digit(token[at])) {
            ++at;
        } else if (token[at] == '_' && at + 1 < token.size() && is_digit(token[at + 1])) {
            at += 2;
        } else {
            break;
        }
    }
    return true;
}

// TOML's own grammar of decimal numbers; from_chars alone would accept more and less than that.
bool is_number(std::string_view token) {
    std::size_t at = 0;
    if (at < token.size() && (token[at] == '+' || token[at] == '-')) ++at;
    const std::size_t first = at;
    if (!skip_digits(token, at)) return false;
    if (token[first] == '0' && at - first > 1) return false;
    if (at < token.size() && token[at] == '.') {
        ++at;
        if (!skip_digits(token, at)) return false;
    }
    if (at < token.size() && (token[at] == 'e' || token[at] == 'E')) {
        ++at;
        if (at < token.size() && (token[at] == '+' || token[at] == '-')) ++at;
        if (!skip_digits(token, at)) return false;
    }
    return at == token.size();
}

// Functions return false after they have set error_; the first error ends the reading.
class Reader {
  public:
    explicit Reader(std::string_view text) : text_(text) {
        if (text_.starts_with("\xef\xbb\xbf")) at_ = 3;
    }

    std::variant<Document, Error> read() {
        document_.sections.push_back(Section{"", {}, 1});
        while (true) {
            if (!skip_blank()) return *error_;
            if (at_end()) return std::move(document_);
            if (!(peek() == '[' ? header() : assignment()) || !end_of_line()) return *error_;
        }
    }

  private:
    bool at_end() const { return at_ >= text_.size(); }
    char peek() const { return at_end() ? '\0' : text_[at_]; }

    bool fail(std::string message) { return fail_at(line_, std::move(message)); }

    bool fail_at(int line, std::string message) {
        error_ = Error{line, std::move(message)};
        return false;
    }

    void skip_spaces() {
        while (peek() == ' ' || peek() == '\t') ++at_;
    }

    bool at_newline() const { return peek() == '\n' || text_.substr(at_, 2) == "\r\n"; }

    void skip_newline() {
        at_ += peek() == '\r' ? 2 : 1;
        ++line_;
    }

    bool skip_comment() {
        if (peek() != '#') return true;
        while (!at_end() && !at_newline()) {
            if (is_control(peek())) return fail("control character in a comment");
            ++at_;
        }
        return true;
    }

    // Spaces, comments and line ends: between lines and inside arrays.
    bool skip_blank() {
        while (true) {
            skip_spaces();
            if (!skip_comment()) return false;
            if (at_end() || !at_newline()) return true;
            skip_newline();
        }
    }

    bool end_of_line() {
        skip_spaces();
        if (!skip_comment()) return false;
        if (at_end() || at_newline()) return true;
        return fail("expected the end of the line or a # comment, found " + quoted(rest_of_line()));
    }

    std::string_view rest_of_line() const {
        const std::string_view rest = text_.substr(at_);
        return rest.substr(0, rest.find_first_of("\r\n"));
    }

    std::string_view bare_word() {
        const std::size_t first = at_;
        while (is_bare(peek())) ++at_;
        return text_.substr(first, at_ - first);
    }

    bool header() {
        ++at_;
        if (peek() == '[')
            return fail("[[arrays of tables]] are not supported; expected [section]");
        skip_spaces();
        const std::string_view name = bare_word();
        skip_spaces();
        if (name.empty() || peek() != ']') {
            return fail(
                "expected a section name of letters, digits, _ and - between [ and ], found " +
                quoted(name.empty() ? rest_of_line() : text_.substr(at_, 1)));
        }
        ++at_;
        if (const Section* earlier = document_.find(name)) {
            return fail("section [" + std::string(name) + "] is already on line " +
                        std::to_string(earlier->line));
        }
        document_.sections.push_back(Section{std::string(name), {}, line_});
        return true;
    }

    bool assignment() {
        const int line = line_;
        const std::string_view key = bare_word();
        if (key.empty()) {
            return fail("expected [section] or key = value, found " + quoted(rest_of_line()));
        }
        skip_spaces();
        if (peek() == '.')
            return fail("dotted keys are not supported; put the key under a [section]");
        if (peek() != '=') {
            return fail("expected = after the key " + quoted(key) + ", found " +
                        (rest_of_line().empty() ? "the end of the line" : quoted(rest_of_line())));
        }
        if (const Entry* earlier = document_.sections.back().find(key)) {
            return fail("key " + quoted(key) + " is already on line " +
                        std::to_string(earlier->line));
        }
        ++at_;
        skip_spaces();
        Value value;
        if (!read_value(value, 0)) return false;
        document_.sections.back().entries.push_back(
            Entry{std::string(key), std::move(value), line});
        return true;
    }

    bool read_value(Value& value, int depth) {
        value.line = line_;
        const std::size_t first = at_;
        bool good = false;
        if (peek() == '"') {
            good = read_string(value.data.emplace<std::string>());
        } else if (peek() == '[') {
            good = read_array(value.data.emplace<std::vector<Value>>(), depth + 1);
        } else {
            good = read_word(value);
        }
        if (good) value.source = text_.substr(first, at_ - first);
        return good;
    }

    bool read_string(std::string& result) {
        ++at_;
        if (text_.substr(at_, 2) == "\"\"")
            return fail("strings over several lines are not supported");
        while (peek() != '"') {
            if (at_end() || at_newline())
                return fail("expected a closing \" before the end of the line");
            if (is_control(peek())) return fail("control character in a string");
            char c = text_[at_++];
            if (c == '\\') {
                const char escaped = peek();
                if (escaped == '"' || escaped == '\\') {
                    c = escaped;
                } else if (escaped == 'n') {
                    c = '\n';
                } else if (escaped == 't') {
                    c = '\t';
                } else {
                    return fail("expected \\\" \\\\ \\n or \\t after a backslash in a string");
                }
                ++at_;
            }
            result += c;
        }
        ++at_;
        return true;
    }

    bool read_array(std::vector<Value>& items, int depth) {
        const int opened = line_;
        if (depth > deepest_array) {
            return fail("arrays nest at most " + std::to_string(deepest_array) + " deep");
        }
        ++at_;
        while (true) {
            if (!skip_blank()) return false;
            if (peek() == ']') break;
            if (at_end())
                return fail_at(opened, "expected ] to close this array before the end of the file");
            Value& item = items.emplace_back();
            if (!read_value(item, depth)) return false;
            if (!item.number() && !item.array()) {
                return fail_at(item.line,
                               "expected a number or an array in this array, found " + item.source);
            }
            if (!skip_blank()) return false;
            if (peek() == ',') {
                ++at_;
            } else if (peek() != ']') {
                if (at_end())
                    return fail_at(opened,
                                   "expected ] to close this array before the end of the file");
                return fail("expected , or ] in the array, found " + quoted(rest_of_line()));
            }
        }
        ++at_;
        return true;
    }

    // true, false or a number.
    bool read_word(Value& value) {
        const std::size_t first = at_;
        while (is_bare(peek()) || peek() == '+' || peek() == '.') ++at_;
        const std::string_view word = text_.substr(first, at_ - first);
        if (word == "true" || word == "false") {
            value.data = word == "true";
            return true;
        }
        if (!is_number(word)) {
            at_ = first;
            return fail(std::string("expected a number, a \"string\", true, false or an [array of "
                                    "numbers], found ") +
                        (rest_of_line().empty() ? "the end of the line" : quoted(rest_of_line())));
        }
        std::string digits;
        for (const char c : word) {
            if (c != '_' && c != '+') digits += c;
        }
        double number = 0;
        const auto [end, code] =
            std::from_chars(digits.data(), digits.data() + digits.size(), number);
        if (code != std::errc{} || end != digits.data() + digits.size() || !std::isfinite(number)) {
            return fail("the number " + quoted(word) + " is out of range");
        }
        value.data = number;
        return true;
    }

    std::string_view text_;
    std::size_t at_ = 0;
    int line_ = 1;
    Document document_;
    std::optional<Error> error_;
};

}  // namespace

const Entry* Section::find(std::string_view key) const {
    for (const Entry& entry : entries) {
        if (entry.key == key) return &entry;
    }
    return nullptr;
}

const Section* Document::find(std::string_view name) const {
    for (const Section& section : sections) {
        if (section.name == name) return &section;
    }
    return nullptr;
}

std::variant<Document, Error> parse(std::string_view text) { return Reader(text).read(); }

}  // namespace vramkit::sim::toml
