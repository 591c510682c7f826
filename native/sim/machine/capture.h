// Stream capture: what is issued on a capturing stream becomes a node of a graph, and a launch of
// the graph issues its nodes again, in the order of their capture, on one stream.
//
// A capture begins on one stream, its origin. Another stream joins it by waiting for an event that
// was recorded in it, and must be joined back the same way before the capture ends. `tips` are the
// nodes that a stream's next node comes after, or that an event stands for.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "driver/cuda_abi.h"
#include "sim/api/calls.h"
#include "sim/checker/clock.h"
#include "sim/machine/kernels.h"
#include "sim/machine/user_objects.h"
#include "sim/time/operation.h"

namespace vramkit::sim {

struct Context;

using NodeIndex = std::uint32_t;

// Memory that a graph was captured with: the id of an allocation or of an announced block, or the
// address of a mapping with a bit that no address has.
using MemoryId = std::uint64_t;
inline constexpr MemoryId kMappingId = std::uint64_t{1} << 63;

struct CapturedTouch : Touch {
    std::vector<MemoryId> memory;
};

struct GraphNode {
    Operation operation;                 // as it was issued, without its stream
    std::vector<CapturedTouch> touches;  // what it does to memory, for the checker
    std::vector<NodeIndex> after;
};

struct Graph {
    // Each one stands behind those it comes after. Their addresses are handles, and stay.
    std::deque<GraphNode> nodes;
    std::unordered_map<MemoryId, std::optional<Mark>> memory;  // and its free, once there was one
    ObjectReferences objects;  // until the program destroys it, or its capture comes to nothing
};

// A launch keeps its executable until it is over, destroyed or not.
struct GraphExecutable {
    std::shared_ptr<Graph> graph;
    ObjectReferences objects;
    // Launches of one executable follow each other, on whatever streams they are.
    std::shared_ptr<Milestone> last;
    Clock clock;

    ~GraphExecutable() { objects.learn(clock); }
};

struct Capture {
    std::uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    std::uint32_t thread = 0;  // label of the one that began it
    Stream* origin = nullptr;
    bool invalidated = false;
    bool ended = false;
    // Nothing can come of it: events recorded in it stand for nothing any more.
    bool over() const { return invalidated || ended; }
    std::vector<Stream*> streams;  // the origin and those that have joined
    std::vector<NodeIndex> left;   // tips of joined streams that were destroyed
    std::shared_ptr<Graph> graph = std::make_shared<Graph>();  // null once it has ended
    std::vector<CapturedTouch> touches;                        // of the node being issued
};

// What a call wants of the stream it names.
enum class Purpose : std::uint8_t { ask, issue, wait };

// Calls that reach past the streams they name, or name none: a capture would miss their effect.
bool unsafe_while_capturing(CallId id);

class Captures {
  public:
    bool none() const { return active_.empty(); }

    CUresult begin(const std::shared_ptr<Stream>& stream, CUstreamCaptureMode mode,
                   std::uint32_t thread);
    // The graph is null where the capture came to nothing. An end by the wrong thread is one too.
    CUresult end(Stream& stream, std::uint32_t thread, std::shared_ptr<Graph>& graph);
    static void invalidate(Capture& capture) { capture.invalidated = true; }
    // The stream is destroyed. A capture that began here ends; one it has joined goes on, and what
    // it added there has to be joined all the same.
    void leave(Stream& stream);

    // Whether a call may go on that issues to a stream or waits for it. What is refused here
    // invalidates the captures it would have disturbed.
    CUresult admit(Stream& stream, Purpose purpose);
    // The same for calls that are potentially unsafe, by the mode of their thread.
    CUresult admit_unsafe(CUstreamCaptureMode mode, std::uint32_t thread);
    // The same for calls that wait for a whole context.
    CUresult admit_context_wait(const Context& context);
    // A blocking stream of the context captures: the legacy stream is not to be used.
    bool blocks_legacy(const Context& context) const;

    // cuEventRecord and cuStreamWaitEvent where one of the two is part of a capture.
    static void record(Stream& stream, Event& event);
    static CUresult wait(const std::shared_ptr<Stream>& stream, const Event& event);
    // Why the host cannot ask about an event that was recorded in a capture. Waiting for it, or
    // asking whether it was reached, spoils the capture; asking for times does not.
    static CUresult refuse_host(const Event& event, bool waits);
    // A node of the stream's capture. Its touches were noted before.
    static void add(Stream& stream, const Operation& operation);

    CUgraph keep(std::shared_ptr<Graph> graph);
    // One that is being captured can be found too, though not dropped.
    std::shared_ptr<Graph> find(CUgraph handle) const;
    bool drop(CUgraph handle);
    CUgraphExec instantiate(const std::shared_ptr<Graph>& graph);
    std::shared_ptr<GraphExecutable> find(CUgraphExec handle) const;
    bool drop(CUgraphExec handle);
    // Whether a launch under way keeps user objects of an executable that was dropped: the program
    // may wait for their callbacks without calling the driver.
    bool keeps_objects();
    // Memory is freed that graphs may have been captured with.
    void memory_released(MemoryId id, const Mark& freed);
    std::size_t graphs() const { return graphs_.size(); }
    std::size_t executables() const { return executables_.size(); }

  private:
    void finish(const std::shared_ptr<Capture>& capture);

    std::vector<std::shared_ptr<Capture>> active_;
    std::uint64_t next_id_ = 1;
    std::map<CUgraph, std::shared_ptr<Graph>> graphs_;
    std::map<CUgraphExec, std::shared_ptr<GraphExecutable>> executables_;
    std::vector<std::weak_ptr<GraphExecutable>> dropped_;  // with user objects
};

}  // namespace vramkit::sim
