// Messages of failures that several resources share.
#include "base/failure.h"

namespace vramkit {

Failure Failure::closed(std::string_view what) {
    std::string text(what);
    text += " is closed";
    return {Kind::closed, CUDA_SUCCESS, "", std::move(text)};
}

Failure Failure::forked(std::string_view what) {
    std::string text(what);
    text += " belongs to the parent process: a forked child cannot use it";
    return in_forked_child(std::move(text));
}

}  // namespace vramkit
