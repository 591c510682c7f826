// A simulated card that several processes of one user share: its memory, and turns on its lanes.
//
// Each process keeps its own addresses, bytes, streams and checker. Shared are the capacity, by a
// row of bytes for each process, and time, by a next-free time for each lane. The caller holds the
// simulation's lock, but for attach() and the end of a card.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/card/card_file.h"
#include "sim/card/process.h"
#include "sim/time/turns.h"

namespace vramkit::sim {

struct Settings;

// Simulated time that passes faster than this in real time leaves the processes of a card no time
// to take turns in.
inline constexpr double kMostCardScale = 10;

// What is wrong with the name of a card, as the end of "allowed is ..."; null: nothing.
const char* refuse_card_name(std::string_view name);

class Card final : public Turns {
  public:
    // Makes this process one of those of settings.card. Null and a reason where it cannot be.
    static std::unique_ptr<Card> attach(const Settings& settings, std::string& error);
    // Leaves, but in a forked child, which is none of the card's processes.
    ~Card() override;
    // The machine is replaced, or the process ends: its memory comes back, and it gets no more.
    void leave();
    // Times of the lanes are told from this moment (CLOCK_MONOTONIC) on.
    void begin(std::int64_t start_ns) { start_ns_ = start_ns; }

    // False: it does not fit beside what the other processes have.
    bool take_memory(std::uint64_t bytes);
    void give_memory_back(std::uint64_t bytes);
    // More or less bytes of this process, whether they fit or not.
    void count_memory(std::int64_t bytes);
    // Of the whole card. Looks for processes that have died.
    std::uint64_t free_bytes();

    Turn take(Lane lane, double from, double needed, bool more) override;
    bool give_back(Lane lane, const Turn& turn, double at) override;
    bool used_by_others(Lane lane, double at) override;

    // The same in all processes, and another for each name and user.
    const CUuuid& uuid() const { return uuid_; }
    unsigned pci_domain() const { return pci_domain_; }
    unsigned pci_bus() const { return pci_bus_; }

    const std::string& name() const { return name_; }
    const std::string& path() const { return file_->path(); }
    struct Share {
        pid_t pid = 0;
        std::uint64_t bytes = 0;
    };
    // One for each attachment: a process has two while a reset replaces its machine.
    std::vector<Share> shares();

  private:
    class Locked;

    Card(const Settings& settings, std::unique_ptr<CardFile> file, const Process& process);
    bool join(const Settings& settings, std::string& error);
    bool may_join(const Settings& settings, std::string& error);
    bool is_own(const SharedCard::Row& row) const;
    bool is_empty();
    std::uint64_t unused_bytes();
    void sweep();
    SharedCard& shared() { return file_->shared(); }
    // Real time since the card's epoch, and back.
    double to_card(double time) const;
    double from_card(double card_time) const;

    std::string name_;
    std::unique_ptr<CardFile> file_;
    Process process_;
    double scale_;
    double time_slice_loss_;
    std::uint64_t pid_namespace_;
    std::uint32_t row_ = kMostCardProcesses;  // none yet
    bool attached_ = false;
    std::int64_t start_ns_ = 0;
    CUuuid uuid_{};
    unsigned pci_domain_ = 0;
    unsigned pci_bus_ = 0;
};

}  // namespace vramkit::sim
