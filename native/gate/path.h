// A path in a fixed buffer. The gate allocates nothing: it runs inside foreign programs, at any
// point of them.
#pragma once

#include <climits>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace vramkit::gate {

class Path {
  public:
    Path() = default;
    explicit Path(std::string_view text) { append(text); }

    // What does not fit makes the path empty, which names no file.
    Path& append(std::string_view text) {
        if (whole_ && size_ + text.size() < sizeof text_) {
            std::memcpy(text_ + size_, text.data(), text.size());
            size_ += text.size();
        } else {
            whole_ = false;
            size_ = 0;
        }
        text_[size_] = '\0';
        return *this;
    }

    const char* c_str() const { return text_; }
    std::string_view view() const { return {text_, size_}; }
    bool empty() const { return size_ == 0; }

  private:
    char text_[PATH_MAX] = {};
    std::size_t size_ = 0;
    bool whole_ = true;
};

// "/a/b/c" gives "/a/b/"; "" where there is no slash.
inline std::string_view folder_of(std::string_view path) {
    return {path.data(), path.rfind('/') + 1};
}

}  // namespace vramkit::gate
