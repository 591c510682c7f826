#include "share/program.h"

#include <pthread.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <thread>

#include "base/host_memory.h"
#include "base/scopes.h"
#include "base/stream_ref.h"
#include "share/log.h"
#include "share/stream_ordered.h"
#include "share/unswappable.h"

namespace vramkit::share {

namespace {

constexpr int kMostRefusals = 1200;  // of 50 ms: then the program gets the driver's error
constexpr std::chrono::seconds kCapturePatience{5};  // for room
constexpr std::uint64_t kLoggedSwaps = 16;  // of the self-test; of more, whenever they double

}  // namespace

std::atomic<Program*> Program::made_{nullptr};

// Calls may still come after it: what was made stays as it is.
void Program::at_exit() {
    const Program* const made = made_.load(std::memory_order_acquire);
    if (made != nullptr && made->agent_ != nullptr && !made->forked()) made->agent_->leave();
}

Program& Program::start(const gate::Beneath& beneath) {
    Program* known = made_.load(std::memory_order_acquire);
    if (known != nullptr) return *known;
    // No lock: another thread may hold the linker's, and looking symbols up waits for that.
    std::unique_ptr<Program> program(new Program(beneath));
    if (!made_.compare_exchange_strong(known, program.get(), std::memory_order_acq_rel)) {
        return *known;
    }
    pthread_atfork(nullptr, nullptr, &in_forked_child);
    std::atexit(&at_exit);
    return *program.release();
}

void Program::in_forked_child() {
    LaunchGate::open_in_child();
    if (get().agent_ != nullptr) get().agent_->forget_in_child();
}

Program::Program(const gate::Beneath& beneath)
    : settings_(Settings::from_environment()),
      driver_(Driver::of_table(beneath.driver, beneath.path, table_of(beneath))),
      checker_(*driver_),
      agent_(settings_.socket.empty() || settings_.chaos != 0 ? nullptr
                                                              : std::make_unique<Agent>(*this)) {
    SlowPathScope::leave_no_context();
    LaunchGate::set_window(settings_.chaos != 0 ? settings_.chaos : settings_.window);
}

DriverTable Program::table_of(const gate::Beneath& beneath) {
    DriverTable table;
    const auto find = [&](auto& field, gate::Export name) {
        using Function = std::remove_reference_t<decltype(field)>;
        void* const function = beneath.calls[gate::number(name)].load(std::memory_order_relaxed);
        field = reinterpret_cast<Function>(function);
    };
#define VRAMKIT_TAKE_required(symbol) find(table.symbol, gate::Export::symbol);
#define VRAMKIT_TAKE_optional(symbol) find(table.symbol, gate::Export::symbol);
#define VRAMKIT_TAKE_answered(symbol)
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) VRAMKIT_TAKE_##need(symbol)
#include "driver/manifest.def"
#undef VRAMKIT_CALL
#undef VRAMKIT_TAKE_required
#undef VRAMKIT_TAKE_optional
#undef VRAMKIT_TAKE_answered
    return table;
}

Card* Program::card(CUdevice device, Failure& why) {
    if (device < 0 || device >= kMostCards) {
        why = Failure::bad_value("device " + std::to_string(device));
        return nullptr;
    }
    auto& slot = cards_[static_cast<std::size_t>(device)];
    if (Card* const known = slot.load(std::memory_order_acquire)) return known;
    const std::lock_guard guard(cards_lock_);
    if (Card* const known = slot.load(std::memory_order_acquire)) return known;
    std::unique_ptr<Card> opened;
    if (!if_host_memory_allows([&] { opened = Card::open(driver_, device, settings_, why); })) {
        why = Failure::out_of_memory();
    }
    if (opened == nullptr) {
        log("device %d: its memory cannot be shared: %s %s", device, std::string(why.call).c_str(),
            why.message.c_str());
        return nullptr;
    }
    log("device %d is used: %llu MiB at most", device,
        static_cast<unsigned long long>(opened->limit() >> 20));
    Card* const made = opened.release();
    slot.store(made, std::memory_order_release);
    if (agent_ != nullptr) {
        // Once more, behind what the driver has registered since: the last one is called first.
        std::atexit(&at_exit);
        agent_->add(*made);
    }
    return made;
}

Card* Program::current_card() {
    CUdevice device = 0;
    if (forked() || call().cuCtxGetDevice(&device) != CUDA_SUCCESS) return nullptr;
    Failure ignored;
    return card(device, ignored);
}

template <class Test>
Card* Program::card_where(Test test) {
    if (forked()) return nullptr;
    Card* found = nullptr;
    each_card([&](Card& card) {
        if (found == nullptr && test(card)) found = &card;
    });
    return found;
}

Card* Program::card_of(std::uint64_t address) {
    return card_where([=](const Card& card) { return card.find(address).has_value(); });
}

Card* Program::card_of_handle(std::uint64_t handle) {
    return card_where([=](const Card& card) { return card.properties_of(handle).has_value(); });
}

Card* Program::card_of_mapping(std::uint64_t address, std::uint64_t bytes) {
    return card_where([=](Card& card) { return card.owns_mapping(address, bytes); });
}

bool Program::enter_slowly(Passenger& me, CUstream stream, CUresult& error) {
    for (int refusals = 0;;) {
        std::atomic_thread_fence(std::memory_order_seq_cst);
        const std::uint32_t reasons = LaunchGate::attention() & ~std::uint32_t{kNoMembarrier};
        // A call inside a call, a callback's for example, goes with that. Calls into a graph do
        // nothing yet, and a capture allows no wait.
        if (reasons == 0 || me.inside.load(std::memory_order_relaxed) > 1 || forked() ||
            is_captured(stream)) {
            return true;
        }
        me.inside.store(0, std::memory_order_release);
        Failure why;
        Brought brought = wait_for_turn(why);
        if (brought == Brought::failed && why.code == CUDA_ERROR_OUT_OF_MEMORY &&
            agent_ != nullptr && ++refusals < kMostRefusals) {
            wait_for_room();
            brought = Brought::some;
        }
        me.inside.store(1, std::memory_order_relaxed);
        if (brought == Brought::failed) {
            error = why.code != CUDA_SUCCESS ? why.code : CUDA_ERROR_OUT_OF_MEMORY;
            log("memory cannot be brought to the card: %s %s", std::string(why.call).c_str(),
                why.message.c_str());
            return false;
        }
    }
}

// The card has less than there are credits for: others came without a daemon, or this program did.
void Program::wait_for_room() {
    lacking_.fetch_add(1);
    agent_->wait_for_credits();
    lacking_.fetch_sub(1);
}

// Until the gate is open; then brings what was allocated since, or waits a while for room.
Program::Brought Program::wait_for_turn(Failure& why) {
    if (gate_.is_closed()) {
        const auto begin = std::chrono::steady_clock::now();
        waiting_.fetch_add(1);
        if (agent_ != nullptr) agent_->want();
        gate_.wait_until_open();
        waiting_.fetch_sub(1);
        const std::chrono::nanoseconds waited = std::chrono::steady_clock::now() - begin;
        waited_ns_.fetch_add(static_cast<std::uint64_t>(waited.count()));
    }
    const Brought brought = bring_everything(why);
    if (brought == Brought::some) {
        if (agent_ == nullptr) {
            why = Failure::out_of_memory();
            return Brought::failed;
        }
        agent_->wait_for_credits();
    }
    return brought;
}

void Program::bring_for_capture() {
    if (!any_capture()) return;
    Failure why;
    const auto until = std::chrono::steady_clock::now() + kCapturePatience;
    for (;;) {
        const Brought brought = bring_everything(why);
        if (brought == Brought::all) return;
        if (brought == Brought::failed) {
            log("memory of a capture cannot be brought to the card: %s %s",
                std::string(why.call).c_str(), why.message.c_str());
            return;
        }
        if (agent_ == nullptr || capture_lacked_.load()) return;
        if (std::chrono::steady_clock::now() >= until) break;
        agent_->wait_for_credits();
    }
    capture_lacked_.store(true);
    log("the card has no room for memory that a capture has allocated: its copies may fail");
}

void Program::after_many_launches(Passenger& me, CUstream stream) {
    std::uint32_t window = me.window.load(std::memory_order_relaxed);
    me.launches.fetch_add(window, std::memory_order_relaxed);
    me.launches_left.store(window, std::memory_order_relaxed);
    // Inside another call, or into a graph: nothing may wait.
    if (me.inside.load(std::memory_order_relaxed) > 0 || forked() || is_captured(stream)) return;
    if (settings_.chaos != 0) swap_everything();
    if (agent_ == nullptr || !agent_->expects_turns()) return;
    window = me.in_flight.look(call(), stream, window);
    me.window.store(window, std::memory_order_relaxed);
    me.launches_left.store(window, std::memory_order_relaxed);
}

Program::Brought Program::bring_everything(Failure& why) {
    const std::lock_guard guard(moving_);
    return bring_locked(why);
}

Program::Brought Program::bring_locked(Failure& why) {
    const std::uint32_t count = LaunchGate::unbacked();
    bool done = true;
    std::uint64_t missing = 0;
    each_card([&](Card& card) {
        if (card.memory().bytes_to_come() == 0) return;
        std::uint64_t lacks = 0;
        done = card.memory().bring(card.credits(), lacks, why) && done;
        missing += lacks;
    });
    if (!done) return Brought::failed;
    if (missing > 0) return Brought::some;
    each_card([&](Card& card) { done = card.memory().finish(why) && done; });
    if (!done) return Brought::failed;
    LaunchGate::backed(count);
    return Brought::all;
}

bool Program::move_out(Card& card, std::uint64_t bytes, swap::Credits& credits, Failure& why) {
    const std::lock_guard guard(moving_);
    const bool moved = card.memory().move_out(bytes, credits, why);
    // What leaves without a copy, since it is zero, needs memory again like what is new.
    if (card.memory().bytes_to_come() > 0) LaunchGate::note_unbacked();
    return moved;
}

bool Program::prepare_host(std::uint64_t bytes, Failure& why) {
    const std::shared_lock living(lives_);
    bool done = true;
    each_card([&](Card& card) { done = done && card.memory().prepare_host(bytes, why); });
    return done;
}

std::uint64_t Program::limit_credits(Card& card) {
    const std::lock_guard guard(moving_);
    return card.limit_credits();
}

bool Program::has_memory() {
    bool any = false;
    each_card([&](Card& card) { any = any || card.in_use() > 0; });
    return any;
}

std::uint64_t Program::launches() const { return LaunchGate::launches(); }

bool Program::close_gate(std::chrono::nanoseconds patience) {
    if (any_capture() || !gate_.close(patience)) return false;
    if (!any_capture()) return true;
    gate_.open();
    return false;
}

bool Program::wait_for_work() {
    const std::shared_lock living(lives_);
    std::vector<OwnContext> contexts;
    {
        const std::lock_guard guard(contexts_lock_);
        contexts = contexts_;
    }
    bool done = true;
    each_card([&](Card& card) {
        done = card.wait_for_work(card.context()) && done;
        for (const OwnContext& each : contexts) {
            if (each.device == card.device()) done = card.wait_for_work(each.handle) && done;
        }
    });
    return done;
}

void Program::swap_everything() {
    const std::unique_lock guard(moving_, std::try_to_lock);
    if (!guard.owns_lock()) return;  // another thread does it just now
    if (!close_gate(std::chrono::seconds(10))) return;
    if (wait_for_work()) {
        Failure why;
        each_card([&](Card& card) {
            if (!card.memory().move_out(swap::kEverything, card.credits(), why)) {
                log("swapping out: %s %s", std::string(why.call).c_str(), why.message.c_str());
            }
        });
        LaunchGate::note_unbacked();
        if (bring_locked(why) != Brought::all) log("swapping in: %s", why.message.c_str());
        ++swaps_;
        if (swaps_ < kLoggedSwaps || std::has_single_bit(swaps_)) log_traffic();
    }
    resume();
}

void Program::log_traffic() {
    each_card([&](Card& card) {
        const swap::Traffic traffic = card.memory().traffic();
        log("device %d: swapped %llu times, %llu bytes out, %llu bytes in", card.device(),
            static_cast<unsigned long long>(swaps_), static_cast<unsigned long long>(traffic.out),
            static_cast<unsigned long long>(traffic.in));
    });
}

void Program::context_made(CUcontext context, CUdevice device) {
    const std::lock_guard guard(contexts_lock_);
    if_host_memory_allows([&] { contexts_.push_back({context, device}); });
}

Program::OwnContext* Program::own_context(CUcontext context) {
    const auto known = std::find_if(contexts_.begin(), contexts_.end(),
                                    [=](const OwnContext& each) { return each.handle == context; });
    return known != contexts_.end() ? &*known : nullptr;
}

bool Program::is_last_use(CUcontext context) {
    const std::lock_guard guard(contexts_lock_);
    const OwnContext* const known = own_context(context);
    return known != nullptr && known->uses == 1;
}

void Program::count_uses(CUcontext context, int change) {
    const std::lock_guard guard(contexts_lock_);
    if (OwnContext* const known = own_context(context)) known->uses += change;
}

void Program::context_ending(CUcontext context) {
    captures_end_with(context);
    CUdevice device = -1;
    {
        const std::lock_guard guard(contexts_lock_);
        const OwnContext* const known = own_context(context);
        if (known == nullptr) return;
        device = known->device;
        contexts_.erase(contexts_.begin() + (known - contexts_.data()));
    }
    // Who found it in the list before is done with it after this.
    {
        const std::unique_lock alone(lives_);
    }
    each_card([&](Card& card) {
        if (card.device() != device) return;
        card.wait_for_work(context);
        card.free_all_of(context);
    });
}

void Program::primary_retained(CUdevice device) {
    if (device < 0 || device >= kMostCards || forked()) return;
    const std::lock_guard guard(contexts_lock_);
    ++primary_retains_[static_cast<std::size_t>(device)];
}

bool Program::primary_releasing(CUdevice device) {
    if (device < 0 || device >= kMostCards || forked()) return true;
    const std::lock_guard guard(contexts_lock_);
    int& retains = primary_retains_[static_cast<std::size_t>(device)];
    if (retains == 0) return card_if_open(device) == nullptr;  // else the driver says so
    --retains;
    return true;
}

void Program::primary_released(CUdevice device) {
    Card* const card = card_if_open(device);
    if (card == nullptr) return;
    {
        const std::lock_guard guard(contexts_lock_);
        if (primary_retains_[static_cast<std::size_t>(device)] > 0) return;
    }
    // Without sharing the context would be gone, and its memory with it.
    card->wait_for_work(card->context());
    card->free_all_of(card->context());
    StreamOrdered::get().primary_ended(device);
    Unswappable::get().free_all_of(card->context(), call());
}

// Nothing of the context survives: the card is opened again when it is next used.
bool Program::primary_resetting(CUdevice device) {
    if (device < 0 || device >= kMostCards) return true;
    const std::lock_guard guard(cards_lock_);
    {
        const std::lock_guard contexts(contexts_lock_);
        primary_retains_[static_cast<std::size_t>(device)] = 0;
    }
    auto& slot = cards_[static_cast<std::size_t>(device)];
    Card* const known = slot.load();
    if (known == nullptr) return true;
    // Its thread moves memory too.
    if (agent_ != nullptr && !agent_->remove(*known)) return false;
    {
        const std::lock_guard moving(moving_);
        const std::unique_lock alone(lives_);  // from the agent's workers
        std::unique_ptr<Card> card(slot.exchange(nullptr));
        card->wait_for_work(card->context());
        captures_end_with(card->context());
        card.reset();
    }
    if (agent_ != nullptr) agent_->removed();
    return true;
}

void Program::capture_begins(CUstream stream) {
    const std::lock_guard guard(captures_lock_);
    if (captures_.empty()) capture_lacked_.store(false);
    CUcontext context = nullptr;
    call().cuCtxGetCurrent(&context);
    if_host_memory_allows([&] { captures_.insert_or_assign(stream, context); });
    has_captured_.store(true, std::memory_order_relaxed);
}

void Program::capture_ends(CUstream stream) {
    if (!has_captured_.load(std::memory_order_relaxed)) return;
    const std::lock_guard guard(captures_lock_);
    captures_.erase(stream);
}

void Program::captures_end_with(CUcontext context) {
    const std::lock_guard guard(captures_lock_);
    std::erase_if(captures_, [context](const auto& each) { return each.second == context; });
}

bool Program::is_captured(CUstream stream) {
    return has_captured_.load(std::memory_order_relaxed) && stream != VRAMKIT_STREAM_LEGACY &&
           vramkit::is_captured(call(), stream);
}

bool Program::any_capture() {
    if (!has_captured_.load(std::memory_order_relaxed)) return false;
    const std::lock_guard guard(captures_lock_);
    return !captures_.empty();
}

}  // namespace vramkit::share
