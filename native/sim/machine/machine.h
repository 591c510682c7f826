// The simulated machine: devices, contexts, streams, events, and what runs on them.
//
// One Machine lives from reset to reset, shared by all threads under one lock (Simulation). The
// functions here expect that lock to be held.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "sim/api/calls.h"
#include "sim/api/limits.h"
#include "sim/card/card.h"
#include "sim/checker/blocks.h"
#include "sim/checker/call_sites.h"
#include "sim/checker/checker.h"
#include "sim/checker/left_open.h"
#include "sim/checker/unsupported.h"
#include "sim/control/faults.h"
#include "sim/control/settings.h"
#include "sim/machine/capture.h"
#include "sim/machine/kernels.h"
#include "sim/machine/user_objects.h"
#include "sim/memory/memory_pool.h"
#include "sim/memory/space.h"
#include "sim/time/core.h"

namespace vramkit::sim {

struct Stream : std::enable_shared_from_this<Stream> {
    std::uint64_t id = 0;
    Context* context = nullptr;
    bool blocking = true;  // with the legacy default stream
    int priority = 0;
    unsigned flags = 0;
    bool destroyed = false;
    Operation* last = nullptr;  // the newest unfinished one
    std::uint32_t pending = 0;  // unfinished operations
    std::uint64_t issued = 0;   // operations ever
    Actor actor;
    std::shared_ptr<Capture> capture;  // that takes what is issued here; null: it runs
    std::vector<NodeIndex> tips;
    // The answer of the newest cuStreamGetCaptureInfo, which points here.
    std::vector<CUgraphNode> dependencies;
    std::vector<CUgraphEdgeData> edges;
};

struct Event {
    Context* context = nullptr;
    unsigned flags = 0;
    bool recorded = false;
    Operation* pending = nullptr;  // the newest record, while it has not been reached
    double time = 0;
    Clock clock;
    std::shared_ptr<Capture> capture;  // that the newest record is part of
    std::vector<NodeIndex> tips;
};

struct Context {
    std::uint64_t id = 0;
    int device = 0;
    unsigned flags = 0;
    bool primary = false;
    CUresult error = CUDA_SUCCESS;  // sticky
    std::shared_ptr<Stream> legacy;
    std::map<std::uint32_t, std::shared_ptr<Stream>> per_thread;  // by thread label
    std::vector<std::shared_ptr<Stream>> streams;  // made by the program; destroyed ones until idle
    // Work of destroyed streams, as the checker knows it.
    Clock retired;
    Clock retired_blocking;
    std::array<std::size_t, 3> limits{1024, 1 << 20, 8 << 20};
};

struct Module {
    Context* context = nullptr;
};

// A kernel of a module, as cuModuleGetFunction hands it out.
struct Function {
    Module* module = nullptr;
    const BuiltinKernel* kernel = nullptr;
    unsigned shared_bytes = kMostSharedBytes;  // that a block may ask for
    int carveout = -1;                         // percent, a hint
};

struct DeviceState {
    std::unique_ptr<Context> primary;  // made once; the handle stays the same
    int primary_references = 0;
    unsigned primary_flags = 0;
    CUresult lost = CUDA_SUCCESS;
};

// One operation that ran, for timelines.
struct Span {
    std::uint16_t call = 0;
    std::string_view kernel;
    Lane lane = Lane::none;
    int device = 0;
    std::uint64_t stream = 0;
    double start = 0;
    double end = 0;
    std::uint64_t bytes = 0;
};

// What a copy reads and writes.
struct CopyRows {
    std::uint64_t destination = 0;
    std::uint64_t source = 0;
    Box box;
    Strides to;
    Strides from;
};

// Whether a word that holds `seen` ends a cuStreamWaitValue for `value`.
bool condition_holds(std::uint64_t seen, std::uint64_t value, unsigned condition, unsigned width);

// A value issued to be written to a word, and what is ordered before that write.
struct ValueWrite {
    std::uint64_t value = 0;
    Clock clock;
    Component component = 0;
    std::uint64_t time = 0;  // of the write, in its component
};

class Machine final : public Effects {
  public:
    static std::shared_ptr<Machine> make(Settings settings, std::string& error);
    ~Machine() override;

    const Settings settings;
    const Profile& profile() const { return settings.profile; }
    std::unique_ptr<Card> card;  // null: the card is this process's own
    Core& core() { return *core_; }
    Space& space() { return *space_; }
    const Space& space() const { return *space_; }

    Checker checker;
    Blocks blocks;
    CallSites call_sites;
    Unsupported unsupported;
    LeftOpen left_open;  // of what was freed only because the process exits
    Faults faults;
    std::size_t reports_written = ~std::size_t{0};  // reports in the file of the settings, if any
    Pools pools{*this};
    UserObjects user_objects;
    Captures captures;
    std::array<std::uint64_t, kCalls> counts{};
    std::array<int, kCalls> cost_index{};
    std::vector<DeviceState> devices;
    bool initialised = false;

    // Handles. Null or end where the handle is not a live one.
    Context* find(CUcontext handle);
    std::shared_ptr<Stream> find_stream(CUstream handle);
    Event* find(CUevent handle);
    Module* find(CUmodule handle);
    Function* find(CUfunction handle);

    Context* make_context(int device, unsigned flags);
    Context* activate_primary(int device);
    // Ends a context and all it owns, its legacy stream aside. Nothing of it is in flight.
    void destroy_context(Context* context, const Site& site);
    void lose_device(int device, CUresult code);
    std::shared_ptr<Stream> make_stream(Context* context, unsigned flags, int priority);
    void destroy_stream(Stream* stream);
    const std::shared_ptr<Stream>& per_thread_stream(Context* context, std::uint32_t thread);
    Event* make_event(Context* context, unsigned flags);
    void destroy_event(Event* event);
    Module* make_module(Context* context);
    void destroy_module(Module* module);
    Function* function(Module* module, const BuiltinKernel* kernel);

    std::unordered_map<CUmemGenericAllocationHandle, std::shared_ptr<Physical>> handles;
    CUmemGenericAllocationHandle next_handle = 1;

    // Order. Every stream of a context, default streams included.
    std::vector<Stream*> all_streams(Context* context);
    // Puts an operation behind what its stream orders before it: for the card, and for the checker.
    void order(Operation* operation, Stream& stream);
    void order_for_checker(Stream& stream);
    // A value that is written is ordered before the waits issued later that it ends.
    void order_value_for_checker(const Operation& operation);
    // Whether work issued on the stream now would run after an unfinished operation. Looks at
    // everything unfinished that follows that one.
    bool runs_after(const Stream& stream, const Operation* earlier);

    // Accesses of an operation, told to the checker. False: some byte is not mapped.
    bool touch(Stream& stream, std::uint64_t address, std::uint64_t bytes, Use use,
               const Site& site, bool* idle = nullptr);
    // The same where bounds of blocks have been looked at: a node of a graph that is launched.
    bool judge(Stream& stream, const Touch& touch, const Site& site, bool* idle = nullptr);
    // Of the host, at this moment or at the point of a host function.
    void host_touch(std::uint64_t address, std::uint64_t bytes, bool write, const Site& site,
                    const Deferred* point = nullptr);
    // Whether copies of one call, which are in no order, use bytes that one of them writes; and
    // whether the two sides of one overlap. CUDA defines neither.
    void copies_touch(const Stream& stream, std::span<const CopyRows> copies, const Site& site);
    // Sub-allocation. held: freed by the program, and kept by the pool for uses on other streams.
    // Without a stream the order is not known.
    enum class Told : std::uint8_t { allocated, freed, held };
    void block_told(Stream* stream, std::uint64_t address, std::uint64_t bytes, Told told,
                    const Site& site);
    void region_told(std::uint64_t address, std::uint64_t bytes, const Site& site);
    // Blocks of memory pools, for the checker; and a range of which nothing is to be remembered.
    void pool_block_allocated(Stream& stream, std::uint64_t address, std::uint64_t bytes,
                              const Site& site);
    void block_freed(Stream& stream, std::uint64_t address, std::uint64_t bytes, MemoryId id,
                     const Site& site);
    // Of user objects that are gone; with them the host knows of the end of the launches that kept
    // them.
    DueCallbacks take_due_callbacks();
    void pool_block_freed_by_host(std::uint64_t address, std::uint64_t bytes, MemoryId id,
                                  const Site& site);
    void forget_range(std::uint64_t address, std::uint64_t bytes);
    // Memory of a range goes away: a mapping, or a block of a call that waits for all work.
    void release_range(std::uint64_t address, std::uint64_t bytes, MemoryId id, const Site& site);
    // Whether a launch uses memory that has gone since the capture; reports it.
    bool uses_released(const Graph& graph, const CapturedTouch& touch, const Stream& stream,
                       const Site& site);

    // Effects of operations at their time.
    void prepare(Operation& operation) override;
    void started(Operation& operation) override;
    void finished(Operation& operation, double end) override;
    bool lost(const Operation& operation) override;
    bool value_reached(const Operation& operation) override;
    void run_host_function(Operation& operation) override;

    // Host functions wait here for the thread that runs them.
    std::deque<Operation*> host_functions;
    int host_functions_out = 0;   // started and not returned
    int host_functions_slow = 0;  // of those, the ones nobody waits for any more
    // Unfinished work that the host may wait for without calling the driver.
    int host_visible = 0;
    bool host_may_wait() { return host_visible > 0 || captures.keeps_objects(); }

    // By address, the newest few.
    std::unordered_map<std::uint64_t, std::deque<ValueWrite>> value_writes;

    std::size_t timeline_limit = 0;
    std::deque<Span> timeline;
    std::size_t streams() const { return streams_.size(); }
    std::size_t events() const { return events_.size(); }
    std::size_t modules() const { return modules_.size(); }
    std::size_t contexts() const { return contexts_.size(); }
    std::uint64_t value_at(std::uint64_t address, unsigned width);
    // Host time of what had to leave a card for memory that cannot.
    double take_eviction_ns();
    // Of an access of the host to managed memory: pages come from a card by faults.
    double host_pages_ns(std::uint64_t address, std::uint64_t bytes, bool write);
    void drop_physical(const std::shared_ptr<Physical>& physical);

  private:
    explicit Machine(Settings given) : settings(std::move(given)) {}
    bool bytes_of(std::uint64_t address, std::uint64_t bytes, Bytes& out, bool pageable = false);
    void fault(Operation& operation, CUresult code);
    void run_kernel(Operation& operation);
    void run_copy(Operation& operation);
    void run_set(Operation& operation);
    void run_write(Operation& operation);
    // Managed memory that an operation uses, and what has to move for it.
    Moves moves_for(const Operation& operation);
    void put_move(Operation& operation, Lane lane, std::uint64_t bytes, double most,
                  double latency);
    // The newest unfinished operations that the next one on a stream has to wait for.
    std::vector<Operation*> predecessors(const Stream& stream);
    template <class Visit>
    void each_piece(std::uint64_t address, std::uint64_t bytes, Visit visit);
    std::uint64_t bytes_in_bounds(const Stream& stream, std::uint64_t address, std::uint64_t bytes,
                                  Use use, const Site& site);
    std::vector<MemoryId> memory_of(std::uint64_t address, std::uint64_t bytes);
    void memory_released(MemoryId id, const Mark& freed);

    std::unique_ptr<Space> space_;
    std::unique_ptr<Core> core_;
    std::uint64_t next_stream_id_ = 1;
    std::uint64_t next_context_id_ = 1;
    std::unordered_map<Context*, std::unique_ptr<Context>> contexts_;  // created ones
    // Destroyed ones, for ever: another thread may still wait on a stream that points to one.
    std::vector<std::unique_ptr<Context>> graveyard_;
    std::unordered_map<Stream*, std::shared_ptr<Stream>> streams_;
    std::unordered_map<Event*, std::unique_ptr<Event>> events_;
    std::unordered_map<Module*, std::unique_ptr<Module>> modules_;
    std::unordered_map<Function*, std::unique_ptr<Function>> functions_;
    std::unordered_map<std::uint64_t, std::uint64_t> values_;  // with data off: written values
};

}  // namespace vramkit::sim
