// The bytes of a copy or a set: rows of one width, in slices of one height. One row is a plain
// range.
#pragma once

#include <cstdint>

namespace vramkit::sim {

struct Box {
    std::uint64_t width = 0;   // bytes of a row
    std::uint64_t height = 1;  // rows of a slice
    std::uint64_t depth = 1;   // slices

    std::uint64_t bytes() const { return width * height * depth; }
    bool empty() const { return width == 0 || height == 0 || depth == 0; }
};

// Bytes from the beginning of one row, or slice, to that of the next. What there is one of needs
// none.
struct Strides {
    std::uint64_t row = 0;
    std::uint64_t slice = 0;
};

inline Strides packed(const Box& box) { return {box.width, box.width * box.height}; }

// Bytes from the first to the last, what lies between the rows included.
inline std::uint64_t span_of(const Box& box, const Strides& strides) {
    return (box.depth - 1) * strides.slice + (box.height - 1) * strides.row + box.width;
}

// Whether rows and slices follow each other without overlap, and the box ends `most` bytes after it
// begins or earlier. Where it does, neither bytes() nor span_of() is too large for its type.
inline bool is_sound(const Box& box, const Strides& strides, std::uint64_t most) {
    if (box.empty() || box.width > most) return false;
    if (box.height > 1 &&
        (strides.row < box.width || box.height - 1 > (most - box.width) / strides.row)) {
        return false;
    }
    const std::uint64_t slice = (box.height - 1) * strides.row + box.width;
    return box.depth == 1 ||
           (strides.slice >= slice && box.depth - 1 <= (most - slice) / strides.slice);
}

// The same bytes in as few rows as both arrangements allow: those without a gap become one.
inline Box merged(Box box, const Strides& one, const Strides& other) {
    const auto dense = [&](std::uint64_t first, std::uint64_t second) {
        return first == box.width && second == box.width;
    };
    if (box.height > 1 && dense(one.row, other.row)) {
        box.width *= box.height;
        box.height = 1;
    }
    if (box.height == 1 && dense(one.slice, other.slice)) {
        box.width *= box.depth;
        box.depth = 1;
    }
    return box;
}

// visit(offset in one, offset in the other, bytes), row by row.
template <class Visit>
void each_row(const Box& given, const Strides& one, const Strides& other, Visit visit) {
    const Box box = merged(given, one, other);
    for (std::uint64_t slice = 0; slice < box.depth; ++slice) {
        for (std::uint64_t row = 0; row < box.height; ++row) {
            visit(slice * one.slice + row * one.row, slice * other.slice + row * other.row,
                  box.width);
        }
    }
}

// visit(offset, bytes).
template <class Visit>
void each_row(const Box& box, const Strides& strides, Visit visit) {
    each_row(box, strides, strides,
             [&](std::uint64_t at, std::uint64_t, std::uint64_t bytes) { visit(at, bytes); });
}

}  // namespace vramkit::sim
