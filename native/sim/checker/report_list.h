// The reports of a run: the same pair of call sites once, with how often it was seen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "sim/checker/report.h"

namespace vramkit::sim {

class ReportList {
  public:
    static constexpr std::size_t kMost = 1000;  // pairs of call sites; more help nobody

    void add(ReportKind kind, const Mark& first, const Mark& second, std::uint64_t address,
             std::uint64_t bytes);

    const std::vector<Report>& reports() const { return reports_; }
    // Pairs of call sites beyond the limit.
    std::uint64_t left_out() const { return known_.size() - reports_.size(); }
    void clear();

  private:
    // What makes two findings the same. Without stacks all calls of a Python program come from one
    // address: the streams tell them apart.
    struct Side {
        std::uint16_t call = 0;
        std::uint32_t call_site = 0;
        std::uint64_t stream = 0;
        Use use = Use::read;
        bool operator==(const Side&) const = default;
    };
    struct Pair {
        ReportKind kind = ReportKind::race;
        Side first;
        Side second;
        bool operator==(const Pair&) const = default;
    };
    struct Hash {
        std::size_t operator()(const Pair& pair) const;
    };
    static Side side(const Mark& mark) {
        return {mark.site.call, mark.site.call_site, mark.stream, mark.use};
    }

    std::vector<Report> reports_;
    std::unordered_map<Pair, std::size_t, Hash> known_;  // index of the report, kMost: left out
};

}  // namespace vramkit::sim
