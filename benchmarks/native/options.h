// The options of a benchmark program: one table that reads them and prints the help.
#pragma once

#include <getopt.h>

#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "gpu.h"

namespace bench {

// Each option is declared with the variable that it sets; what that holds then is the default, and
// the help shows it.
class OptionTable {
  public:
    OptionTable(std::string usage, std::string purpose)
        : usage_(std::move(usage)), purpose_(std::move(purpose)) {}

    OptionTable& text(const char* name, const char* kind, const char* words, std::string& value) {
        return add(name, kind, words, value, [&value](const char* given) { value = given; });
    }
    OptionTable& number(const char* name, const char* words, int& value, int least, int most) {
        return add(name, "N", words, std::to_string(value), [=, &value](const char* given) {
            value = whole_number(name, given, least, most);
        });
    }
    OptionTable& flag(const char* name, const char* words, bool& value) {
        return add(name, "", words, "", [&value](const char*) { value = true; });
    }

    // False: help was asked for and printed, and the program is to end. Throws Failure.
    bool read(int count, char** arguments) {
        bool help = false;
        flag("help", "print this and stop", help);
        std::vector<option> known;
        for (const Entry& each : entries_) {
            const int takes = each.kind.empty() ? no_argument : required_argument;
            known.push_back({each.name.c_str(), takes, nullptr, 0});
        }
        known.push_back({nullptr, 0, nullptr, 0});
        for (int found = 0, index = 0;
             (found = getopt_long(count, arguments, "", known.data(), &index)) != -1;) {
            if (found != 0) throw Failure("see --help for the options");
            entries_[static_cast<std::size_t>(index)].set(optarg);
        }
        if (optind < count) {
            throw Failure(std::string("what is '") + arguments[optind] + "'? See --help");
        }
        if (help) print();
        return !help;
    }

  private:
    struct Entry {
        std::string name;
        std::string kind;  // of its value; empty: it takes none
        std::string words;
        std::function<void(const char*)> set;
    };

    template <class Set>
    OptionTable& add(const char* name, const char* kind, std::string words,
                     const std::string& standard, Set set) {
        if (!standard.empty()) words += " (" + standard + ")";
        entries_.push_back({name, kind, std::move(words), std::move(set)});
        return *this;
    }

    static int whole_number(const char* name, const char* text, int least, int most) {
        char* end = nullptr;
        const long value = std::strtol(text, &end, 10);
        if (*text == '\0' || *end != '\0' || value < least || value > most) {
            throw Failure(std::string("--") + name + " takes a whole number from " +
                          std::to_string(least) + " to " + std::to_string(most) + ", not '" + text +
                          "'");
        }
        return static_cast<int>(value);
    }

    void print() const {
        std::printf("usage: %s [options]\n\n%s\n\n", usage_.c_str(), purpose_.c_str());
        for (const Entry& each : entries_) {
            const std::string left = "--" + each.name + (each.kind.empty() ? "" : " " + each.kind);
            std::printf("  %-22s %s\n", left.c_str(), each.words.c_str());
        }
    }

    std::string usage_;
    std::string purpose_;
    std::vector<Entry> entries_;
};

// What every main does: reads the options, and runs with them unless help was asked for. The result
// of `run` is the program's; 2: nothing could be run, and standard error says why.
template <class Parse, class Run>
int run_program(const char* name, Parse parse, Run run) {
    try {
        const auto options = parse();
        return options ? run(*options) : 0;
    } catch (const Failure& failure) {
        std::fprintf(stderr, "%s: %s\n", name, failure.what());
        return 2;
    }
}

// Which GPU a program opens: the options that the programs have in common.
class GpuChoice {
  public:
    GpuChoice() { gpu_.settings = "profile=h200,clock=virtual,checker=off,data=off"; }

    void add_kernels(OptionTable& table) {
        table.text("kernels", "FILE",
                   "PTX text of the built-in kernels: src/vramkit/driver/kernels.ptx, needed",
                   gpu_.kernels);
    }
    void add_library(OptionTable& table) {
        table.text("sim-library", "FILE",
                   "libcuda.so.1 of the simulated GPU, needed to run on that", gpu_.library);
    }
    // For a program that runs on both drivers.
    void add(OptionTable& table) {
        table.text("driver", "cuda|sim", "which driver answers, needed", driver_);
        add_kernels(table);
        add_library(table);
        table.text("settings", "TEXT", "of the simulated GPU", gpu_.settings);
        table.number("device", "ordinal of the card", gpu_.device, 0, 1'000'000);
    }

    // What was chosen. Throws Failure where something is missing.
    GpuOptions checked() const {
        if (driver_ != "cuda" && driver_ != "sim") {
            throw Failure("--driver takes cuda or sim, not '" + driver_ + "'");
        }
        return checked(driver_ == "sim");
    }
    GpuOptions checked(bool simulated) const {
        if (gpu_.kernels.empty()) throw Failure("--kernels FILE is needed, see --help");
        if (simulated && gpu_.library.empty()) {
            throw Failure("the simulated GPU needs --sim-library FILE, see --help");
        }
        GpuOptions chosen = gpu_;
        chosen.simulated = simulated;
        return chosen;
    }

  private:
    GpuOptions gpu_;
    std::string driver_;
};

}  // namespace bench
