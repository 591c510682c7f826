// Rows of processes, and next-free times of lanes, under the file's mutex.
#include "sim/card/card.h"

#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "sim/control/settings.h"
#include "sim/profile/profile_fields.h"

namespace vramkit::sim {
namespace {

// The longest turn, in real time. Long beside the 0.1 ms after which a sleeping process notices
// that its turn has come, short beside a transfer that is worth measuring.
constexpr double kTurnNs = 1e6;
// Queueing up behind every other process takes no longer. A time beyond that is wrong.
constexpr double kLongestQueueNs = kTurnNs * kMostCardProcesses;
constexpr double kRoundingNs = 1;

std::int64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * std::int64_t{1000000000} + now.tv_nsec;
}

// Which life of the process this is: an exec begins another, with the same number and start.
std::uint64_t this_program() {
    static const auto begun = static_cast<std::uint64_t>(monotonic_ns());
    return begun;
}

// 0 where the system does not tell: then all say so.
std::uint64_t this_pid_namespace() {
    struct stat found{};
    return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

// FNV-1a, with every bit of the result depending on every bit of the text.
std::uint64_t hash(std::string_view text, std::uint64_t seed) {
    std::uint64_t value = 0xcbf29ce484222325ull ^ seed;
    for (const char each : text) {
        value = (value ^ static_cast<unsigned char>(each)) * 0x100000001b3ull;
    }
    for (int round = 0; round < 2; ++round) {
        value = (value ^ (value >> 32)) * 0xd6e8feb86659fd93ull;
    }
    return value ^ (value >> 32);
}

std::uint64_t figures_of(const Profile& profile) {
    std::string text;
    fields::for_each_field(
        profile, [&](std::string_view, std::string_view, const auto& member, auto) {
            if constexpr (fields::is_text<std::remove_reference_t<decltype(member)>>) {
                text += member;
            } else {
                text += fields::shown(static_cast<double>(member));
            }
            text += '\n';
        });
    return hash(text, 0);
}

std::size_t number(Lane lane) { return static_cast<std::size_t>(lane); }

std::string told(std::string_view profile, std::uint64_t capacity, double scale) {
    return "profile=" + std::string(profile) + ", capacity=" + std::to_string(capacity) +
           ", scale=" + fields::shown(scale);
}

}  // namespace

// Holds the mutex of the file.
class Card::Locked {
  public:
    explicit Locked(Card& card) : mutex_(card.shared().mutex) {
        if (pthread_mutex_lock(&mutex_) == EOWNERDEAD) {
            // Whatever the dead one was about, its row is all that is wrong.
            card.sweep();
            pthread_mutex_consistent(&mutex_);
        }
    }
    ~Locked() { pthread_mutex_unlock(&mutex_); }
    Locked(const Locked&) = delete;
    Locked& operator=(const Locked&) = delete;

  private:
    pthread_mutex_t& mutex_;
};

const char* refuse_card_name(std::string_view name) {
    const bool good = !name.empty() && name.size() <= kLongestCardName &&
                      std::all_of(name.begin(), name.end(), [](char each) {
                          return (each >= 'a' && each <= 'z') || (each >= 'A' && each <= 'Z') ||
                                 (each >= '0' && each <= '9') || each == '-' || each == '_' ||
                                 each == '.';
                      });
    return good ? nullptr : "a name of 1 to 64 letters, digits, '-', '_' and '.'";
}

std::unique_ptr<Card> Card::attach(const Settings& settings, std::string& error) {
    const std::optional<Process> process = this_process();
    if (!process) {
        error = "card " + settings.card +
                ": cannot read /proc/self/stat, by which the processes "
                "of a card know each other";
        return nullptr;
    }
    auto file = CardFile::open(settings.card, error);
    if (file == nullptr) return nullptr;
    std::unique_ptr<Card> card(new Card(settings, std::move(file), *process));
    card->attached_ = card->join(settings, error);
    card->file_->unlock();
    return card->attached_ ? std::move(card) : nullptr;
}

Card::Card(const Settings& settings, std::unique_ptr<CardFile> file, const Process& process)
    : name_(settings.card),
      file_(std::move(file)),
      process_(process),
      scale_(settings.scale),
      time_slice_loss_(settings.profile.sharing.time_slice_loss),
      pid_namespace_(this_pid_namespace()) {
    const std::string whose = std::to_string(geteuid()) + "/" + name_;
    const std::uint64_t words[] = {hash(whose, 1), hash(whose, 2)};
    std::memcpy(uuid_.bytes, words, sizeof words);
    pci_domain_ = static_cast<unsigned>(words[0] & 0xffff);
    pci_bus_ = 1 + static_cast<unsigned>(words[1] % 255);
}

Card::~Card() { leave(); }

// With the file's lock held.
bool Card::join(const Settings& settings, std::string& error) {
    const Locked locked(*this);
    sweep();
    SharedCard& all = shared();
    if (is_empty()) {
        all.epoch_ns = monotonic_ns();
        all.pid_namespace = pid_namespace_;
        all.lanes = {};
    }
    if (!may_join(settings, error)) return false;
    std::snprintf(all.profile.data(), all.profile.size(), "%s", settings.profile.name.c_str());
    all.figures = figures_of(settings.profile);
    all.capacity = settings.capacity;
    all.scale = settings.scale;
    for (std::uint32_t index = 0; index < kMostCardProcesses; ++index) {
        SharedCard::Row& row = all.rows[index];
        if (row.pid.load() != 0) continue;
        row.bytes.store(0);
        row.started = process_.started;
        row.program = this_program();
        row.pid.store(process_.pid, std::memory_order_release);
        row_ = index;
        return true;
    }
    error = "card " + name_ + ": it has " + std::to_string(kMostCardProcesses) +
            " processes already, which is the most";
    return false;
}

bool Card::may_join(const Settings& settings, std::string& error) {
    SharedCard& all = shared();
    if (all.pid_namespace != pid_namespace_) {
        error = "card " + name_ +
                ": its processes run in another container (PID namespace), and this one cannot "
                "tell which of them live; use another name, or remove " +
                path() + " if none does";
        return false;
    }
    // A process alone may change its mind with a reset.
    const bool alone = std::all_of(all.rows.begin(), all.rows.end(), [&](const auto& row) {
        return row.pid.load() == 0 || is_own(row);
    });
    const bool same_figures = all.figures == figures_of(settings.profile);
    if (alone ||
        (same_figures && all.capacity == settings.capacity && all.scale == settings.scale)) {
        return true;
    }
    const std::string have = told(all.profile.data(), all.capacity, all.scale);
    const std::string asked = told(settings.profile.name, settings.capacity, settings.scale);
    error = "card " + name_ + ": its other processes have " + have + ", this one asks for " +
            asked + (have == asked ? " with other figures in the profile" : "") +
            "; give all processes of a card the same, or use another name";
    return false;
}

void Card::leave() {
    // What a forked child inherits is its parent's.
    if (!attached_ || getpid() != process_.pid) return;
    attached_ = false;
    file_->lock();
    {
        const Locked locked(*this);
        shared().rows[row_].pid.store(0, std::memory_order_release);
        sweep();
        if (is_empty()) file_->remove();
    }
    file_->unlock();
}

bool Card::take_memory(std::uint64_t bytes) {
    if (!attached_) return false;
    const Locked locked(*this);
    if (bytes > unused_bytes()) sweep();
    if (bytes > unused_bytes()) return false;
    shared().rows[row_].bytes.fetch_add(bytes);
    return true;
}

void Card::give_memory_back(std::uint64_t bytes) {
    if (!attached_) return;
    const Locked locked(*this);
    shared().rows[row_].bytes.fetch_sub(bytes);
}

void Card::count_memory(std::int64_t bytes) {
    if (!attached_) return;
    const Locked locked(*this);
    shared().rows[row_].bytes.fetch_add(static_cast<std::uint64_t>(bytes));
}

std::uint64_t Card::free_bytes() {
    if (!attached_) return 0;
    const Locked locked(*this);
    sweep();
    return unused_bytes();
}

std::vector<Card::Share> Card::shares() {
    std::vector<Share> found;
    if (!attached_) return found;
    const Locked locked(*this);
    sweep();
    for (const SharedCard::Row& row : shared().rows) {
        if (row.pid.load() != 0) found.push_back({row.pid.load(), row.bytes.load()});
    }
    return found;
}

Turn Card::take(Lane lane, double from, double needed, bool more) {
    if (!attached_) return {from, from + needed, 1};
    const Locked locked(*this);
    SharedCard::LaneState& state = shared().lanes[number(lane)];
    const double wish = to_card(from);
    double start = wish;
    const double latest = static_cast<double>(monotonic_ns() - shared().epoch_ns) + kLongestQueueNs;
    const bool sound = state.next_free_ns > wish && state.next_free_ns <= latest;
    if (sound) start = state.next_free_ns;
    const bool waited = start > wish + kRoundingNs && state.owner != row_;
    // The driver switches between processes that compute at once, and that costs.
    const double rate = waited && lane == Lane::compute ? 1 - time_slice_loss_ : 1;
    const double alone = needed / scale_ / rate + kRoundingNs;
    const double end = start + (more ? kTurnNs : std::min(kTurnNs, alone));
    state.next_free_ns = end;
    state.owner = row_;
    // Alone, work begins when it would have on a card of its own, to the last bit.
    return {start > wish ? from_card(start) : from, from_card(end), rate};
}

bool Card::give_back(Lane lane, const Turn& turn, double at) {
    if (!attached_) return true;
    const Locked locked(*this);
    SharedCard::LaneState& state = shared().lanes[number(lane)];
    if (state.owner != row_ || state.next_free_ns > to_card(turn.end) + kRoundingNs) return false;
    state.next_free_ns = to_card(std::max(at, turn.start));
    return true;
}

bool Card::used_by_others(Lane lane, double at) {
    if (!attached_) return false;
    const Locked locked(*this);
    const SharedCard::LaneState& state = shared().lanes[number(lane)];
    return state.owner != row_ && state.next_free_ns > to_card(at) + kRoundingNs;
}

// The rest expects the mutex to be held.

bool Card::is_own(const SharedCard::Row& row) const {
    return Process{row.pid.load(), row.started} == process_ && row.program == this_program();
}

bool Card::is_empty() {
    return std::all_of(shared().rows.begin(), shared().rows.end(),
                       [](const auto& row) { return row.pid.load() == 0; });
}

std::uint64_t Card::unused_bytes() {
    std::uint64_t used = 0;
    for (const SharedCard::Row& row : shared().rows) {
        if (row.pid.load() != 0) used += row.bytes.load();
    }
    return shared().capacity - std::min(used, shared().capacity);
}

// Frees the rows of the dead, and those of what this process was before an exec.
void Card::sweep() {
    if (shared().pid_namespace != pid_namespace_) return;
    for (SharedCard::Row& row : shared().rows) {
        const Process process{row.pid.load(), row.started};
        if (process.pid == 0 || is_own(row)) continue;
        if (process == process_ || !is_alive(process)) row.pid.store(0);
    }
}

double Card::to_card(double time) const {
    return time / scale_ + static_cast<double>(start_ns_ - file_->shared().epoch_ns);
}

double Card::from_card(double card_time) const {
    return (card_time - static_cast<double>(start_ns_ - file_->shared().epoch_ns)) * scale_;
}

}  // namespace vramkit::sim
