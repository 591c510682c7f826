// The result file of a program that measures allocators.
#pragma once

#include <cstdio>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "allocators_bench.h"
#include "machine.h"
#include "result_file.h"

namespace bench {

// Renewed after every case. The time limit may end the run from another thread at any moment: what
// it needs is kept here behind a lock, the driver's answers included.
class AllocatorReport {
  public:
    AllocatorReport(const Gpu& gpu, const Cases& cases, std::string path, int repetitions)
        : simulated_(gpu.simulated()),
          device_(gpu.name()),
          version_(gpu.version()),
          settings_(gpu.settings()),
          cases_(cases),
          path_(std::move(path)),
          repetitions_(repetitions) {
        save();  // so that no older file is taken for this run's
    }

    // The rows of the next case.
    void add(std::vector<Row> rows) {
        const std::lock_guard guard(lock_);
        for (Row& row : rows) add_row(std::move(row));
        ++ended_;
        save();
    }
    // The case that runs is the last one. Nothing is taken after this.
    void time_over(int seconds) {
        lock_.lock();
        if (ended_ == cases_.size()) return;
        const std::string words = "timed out after " + std::to_string(seconds) + " s";
        for (std::size_t i = ended_; i < cases_.size(); ++i) {
            Row row = cases_[i].row;
            row.outcome = i == ended_ ? words : "not run: one before it " + words;
            add_row(std::move(row));
        }
        save();
    }

  private:
    void add_row(Row row) {
        std::printf("%-14s %-26s ", row.allocator.c_str(), row.workload.c_str());
        if (!row.values.empty()) {
            std::printf("%12.3f %s  (%.3f to %.3f)", quantile(row.values, 0.5), row.unit.c_str(),
                        quantile(row.values, 0.1), quantile(row.values, 0.9));
        }
        std::printf("  %s%s\n", row.outcome.c_str(), row.error.c_str());
        std::fflush(stdout);
        rows_.push_back(std::move(row));
    }

    void save() const {
        if (path_.empty()) return;
        Json json;
        json.begin_object().field("benchmark", "allocators");
        json.field("complete", ended_ == cases_.size());
        json.field("simulated", simulated_).field("device", device_);
        json.field("driver_version", version_).key("settings").raw(settings_);
        write_machine(json);
        json.field("repetitions", repetitions_).key("rows").begin_array();
        for (const Row& row : rows_) write(json, row);
        write_file(path_, json.end_array().end_object().text());
    }

    static void write(Json& json, const Row& row) {
        json.begin_object().field("workload", row.workload).field("allocator", row.allocator);
        json.field("unit", row.unit);
        if (!row.error.empty()) json.field("error", row.error);
        if (!row.outcome.empty()) json.field("outcome", row.outcome);
        if (!row.values.empty()) {
            json.field("median", quantile(row.values, 0.5));
            json.field("p10", quantile(row.values, 0.1));
            json.field("p90", quantile(row.values, 0.9));
        }
        json.field("values", row.values).key("details").begin_object();
        for (const auto& [name, value] : row.details) json.field(name, value);
        json.end_object().end_object();
    }

    const bool simulated_;
    const std::string device_;
    const int version_;
    const std::string settings_;
    const Cases& cases_;
    const std::string path_;
    const int repetitions_;
    std::mutex lock_;
    std::vector<Row> rows_;
    std::size_t ended_ = 0;  // cases
};

}  // namespace bench
