// A set of size classes: one bit for each.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

#include "pool/blocks/size_classes.h"

namespace vramkit::pool {

class ClassSet {
  public:
    void set(ClassIndex index) { word_of(index) |= bit_of(index); }
    void clear(ClassIndex index) { word_of(index) &= ~bit_of(index); }
    // The first class of the set from this one on; kClasses: there is none.
    ClassIndex next(ClassIndex from) const {
        for (std::size_t word = from / 64; word < words_.size(); ++word, from = 0) {
            const std::uint64_t ahead = words_[word] >> from % 64;
            if (ahead != 0) {
                return static_cast<ClassIndex>(64 * word + from % 64) + std::countr_zero(ahead);
            }
        }
        return kClasses;
    }
    // visit(ClassIndex) with each class from the last one down to `least`. It may clear the class.
    template <class Visit>
    void each_down(ClassIndex least, Visit visit) const {
        for (std::size_t word = words_.size(); word-- > least / 64;) {
            std::uint64_t left = words_[word];
            if (word == least / 64) left &= ~std::uint64_t{0} << least % 64;
            while (left != 0) {
                const auto bit = static_cast<ClassIndex>(std::bit_width(left)) - 1;
                left &= ~bit_of(bit);
                visit(static_cast<ClassIndex>(64 * word) + bit);
            }
        }
    }

  private:
    std::uint64_t& word_of(ClassIndex index) { return words_[index / 64]; }
    static std::uint64_t bit_of(ClassIndex index) { return std::uint64_t{1} << index % 64; }

    std::array<std::uint64_t, (kClasses + 63) / 64> words_{};
};

}  // namespace vramkit::pool
