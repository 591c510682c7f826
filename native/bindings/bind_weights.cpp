// Binds the engine that streams weights. Every call may wait for the driver's locks, so all release
// the GIL.
#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/variant.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

#include "bindings/bind.h"
#include "bindings/event.h"
#include "bindings/invoke.h"
#include "bindings/native_resource.h"
#include "bindings/owner.h"
#include "bindings/python_expander.h"
#include "bindings/wait.h"
#include "pool/handle.h"
#include "weights/decoder.h"
#include "weights/giving_way.h"
#include "weights/streamer.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

using weights::GroupIndex;
using weights::Schedule;
using weights::Streamer;

// Arguments are what vramkit.weights made of the user's: indices are in range.
class StreamerEngine final : public NativeObject {
  public:
    // As vramkit.weights.card_memory.Chunk: first byte, bytes, offset, bytes stored, staged,
    // exceptions.
    using StoredChunk = std::tuple<uint64_t, uint64_t, uint64_t, uint64_t, bool, uint64_t>;
    using Source = std::tuple<std::string, uint64_t, uint64_t, uint64_t, std::vector<StoredChunk>>;
    // The kernels vk_unpack_bf16 and vk_patch_bf16.
    using Decoding = std::pair<uint64_t, uint64_t>;

    StreamerEngine(std::shared_ptr<Device> given, uint64_t ring_address, uint64_t ring_bytes,
                   const std::vector<Source>& sources, uint64_t chunk_bytes,
                   std::pair<uint64_t, uint64_t> staging,
                   const std::variant<Decoding, nb::object>& expand)
        : NativeObject(std::move(given), "WeightManager") {
        std::vector<weights::GroupSource> groups;
        for (const auto& [name, address, source, bytes, stored] : sources) {
            std::vector<weights::Chunk> chunks;
            for (const auto& [first, length, offset, nbytes, staged, exceptions] : stored) {
                chunks.push_back({first, length, offset, nbytes, staged, exceptions});
            }
            groups.push_back({name, address, reinterpret_cast<const std::byte*>(source), bytes,
                              std::move(chunks)});
        }
        const auto [address, slot_bytes] = staging;
        CUcontext context = nullptr;
        check(device()->session().driver(), device()->context(&context),
              "cuDevicePrimaryCtxRetain");
        const weights::Staging slots{address, slot_bytes, expander(expand)};
        Failure why;
        {
            const GilReleased released;
            engine_ = Streamer::open(device()->session().shared_driver(), context,
                                     {ring_address, ring_bytes}, std::move(groups), chunk_bytes,
                                     slots, why);
        }
        if (engine_ == nullptr) fail(why);
    }
    ~StreamerEngine() {
        if (engine_ == nullptr) return;
        if (ExitGate::closed() || forked()) {
            // At exit nothing may wait for the GPU, and in a forked child it is the parent's.
            static_cast<void>(giving_way_.release());
            static_cast<void>(engine_.release());
            return;
        }
        if (gone()) {
            engine_->forget();
            if (giving_way_ != nullptr) giving_way_->forget();
        }
        const GilReleased released;
        giving_way_.reset();
        engine_.reset();
    }

    uint32_t add(Schedule schedule) {
        return locked([&](Streamer& streamer) { return streamer.add(std::move(schedule)); });
    }
    void replace(uint32_t number, Schedule schedule) {
        locked([&](Streamer& streamer) { streamer.replace(number, std::move(schedule)); });
    }
    void follow(uint32_t number) {
        locked([&](Streamer& streamer) { streamer.follow(number); });
    }

    // None, as in what follows: its memory was taken away.
    std::optional<bool> enter(GroupIndex group, nb::handle on) {
        const StreamRef ref = usable(on);
        bool on_its_way = false;
        const bool done =
            attempt_on(group, "wait_group_ready", [&](Streamer& streamer, Failure& why) {
                return streamer.enter(group, ref, on_its_way, why);
            });
        return done ? std::optional(on_its_way) : std::nullopt;
    }
    void leave(GroupIndex group, nb::handle on) {
        const StreamRef ref = usable(on);
        attempt("release",
                [&](Streamer& streamer, Failure& why) { return streamer.leave(group, ref, why); });
    }
    std::optional<bool> prefetch(GroupIndex group, bool urgent) {
        const bool done =
            attempt_on(group, "prefetch_group_async", [&](Streamer& streamer, Failure& why) {
                return streamer.prefetch(group, urgent, why);
            });
        return done ? std::optional(true) : std::nullopt;
    }
    std::optional<bool> ensure(GroupIndex group) {
        CUevent event = nullptr;
        const bool done =
            attempt_on(group, "ensure_group_on_gpu", [&](Streamer& streamer, Failure& why) {
                event = streamer.ready(group, why);
                return event != nullptr;
            });
        if (!done) return std::nullopt;
        Device& card = *device();
        check_call(card, call_waiting_for(card, card.call().cuEventSynchronize,
                                          "cuEventSynchronize", card.call().cuEventQuery, event));
        return true;
    }
    bool on_its_way(GroupIndex group) const {
        return locked([&](Streamer& streamer) { return streamer.on_its_way(group); });
    }
    void pin(GroupIndex group, bool pinned) {
        locked([&](Streamer& streamer) { streamer.pin(group, pinned); });
    }
    void evict(GroupIndex group) {
        attempt("evict",
                [&](Streamer& streamer, Failure& why) { return streamer.evict(group, why); });
    }
    void synchronize() {
        if (ExitGate::closed()) return;  // as above
        attempt("synchronize",
                [](Streamer& streamer, Failure& why) { return streamer.synchronize(why); });
    }
    nb::dict counters() const {
        const weights::Counters now =
            locked([](Streamer& streamer) { return streamer.counters(); });
        nb::dict result;
        result["copies"] = now.copies;
        result["copied_bytes"] = now.copied_bytes;
        result["misses"] = now.misses;
        result["off_order"] = now.off_order;
        result["left_out"] = now.left_out;
        result["failed"] = now.failed;
        return result;
    }
    std::vector<std::pair<GroupIndex, bool>> log_copies(bool on) {
        std::vector<std::pair<GroupIndex, bool>> result;
        for (const weights::Copied& each :
             locked([&](Streamer& streamer) { return streamer.log_copies(on); })) {
            result.emplace_back(each.group, each.urgent);
        }
        return result;
    }
    void time_copies() {
        attempt("last_pass",
                [](Streamer& streamer, Failure& why) { return streamer.time_copies(why); });
    }
    std::vector<std::tuple<GroupIndex, double, double>> copy_times(const Event& since) {
        std::vector<weights::CopyTime> times;
        attempt("recorded_pass", [&](Streamer& streamer, Failure& why) {
            return streamer.copy_times(since.handle(), times, why);
        });
        std::vector<std::tuple<GroupIndex, double, double>> result;
        for (const weights::CopyTime& each : times) {
            result.emplace_back(each.group, each.began, each.ended);
        }
        return result;
    }
    // Residents in blocks of the pool, which come and go on the stream. The pool is a
    // vramkit_pool*.
    void give_way_to(uintptr_t pool, nb::handle on) {
        const StreamRef ref = stream(on);
        const auto& handle = *reinterpret_cast<const pool::Handle*>(pool);
        giving_way_ = std::make_unique<weights::GivingWay>(engine(), handle.engine, ref);
    }
    // Moves a group to a block of the pool, which is allocated on the stream of give_way_to().
    // False: it is in use or pinned.
    bool settle(GroupIndex group, uint64_t address, uint64_t bytes, nb::handle on) {
        const StreamRef ref = stream(on);
        if (!moved({{group, address}}, ref.handle)) return false;
        const GilReleased released;
        giving_way_->settle(group, address, bytes);
        return true;
    }
    // False: one of them is in use or pinned, and none is moved.
    bool move(const Streamer::Moves& moves) { return moved(moves, nullptr); }
    std::vector<GroupIndex> settled() const {
        require_present();
        const GilReleased released;
        return giving_way_->settled();
    }
    // Groups that gave way, each time counted, and their bytes.
    std::pair<uint64_t, uint64_t> gave_way() const {
        require_present();
        const GilReleased released;
        const weights::GivingWay::Counts counts = giving_way_->counts();
        return {counts.groups, counts.bytes};
    }
    std::pair<uint64_t, uint64_t> stream_ids() const {
        return {engine().stream_ids()[0], engine().stream_ids()[1]};
    }

  private:
    // Raises ClosedError after a reset of the simulated GPU, and in a forked child.
    Streamer& engine() const {
        require_present();
        return *engine_;
    }
    StreamRef usable(nb::handle on) const {
        require_present();
        const StreamRef ref = stream(on);
        if (ref.capture != 0) {
            throw nb::value_error(
                "the stream is being captured: streamed weights would be in the graph as they are "
                "now; capture with the weights resident");
        }
        return ref;
    }
    std::shared_ptr<weights::Expander> expander(const std::variant<Decoding, nb::object>& expand) {
        if (const auto* object = std::get_if<nb::object>(&expand)) {
            return python_ = std::make_shared<PythonExpander>(*object);
        }
        const auto [unpack, patch] = std::get<Decoding>(expand);
        return std::make_shared<weights::Decoder>(device()->session().shared_driver(),
                                                  reinterpret_cast<CUfunction>(unpack),
                                                  reinterpret_cast<CUfunction>(patch));
    }
    // Without the GIL: whoever has the streamer's lock may be waiting for it, to expand a chunk.
    template <typename Work>
    std::invoke_result_t<const Work&, Streamer&> locked(const Work& work) const {
        Streamer& streamer = engine();
        const GilReleased released;
        return work(streamer);
    }
    template <typename Work>
    void attempt(const char* method, const Work& work) {
        Streamer& streamer = engine();
        Failure why;
        bool done;
        {
            const GilReleased released;
            done = work(streamer, why);
        }
        if (python_ != nullptr) python_->rethrow();
        if (!done) fail(why, method);
    }
    // False: nothing was done, since the memory of the group was taken away.
    template <typename Work>
    bool attempt_on(GroupIndex group, const char* method, const Work& work) {
        bool has_address = true;
        attempt(method, [&](Streamer& streamer, Failure& why) {
            if (work(streamer, why)) return true;
            has_address = why.kind != Failure::Kind::bad_value || streamer.has_address(group);
            return !has_address;
        });
        return has_address;
    }
    bool moved(const Streamer::Moves& moves, CUstream behind) {
        bool refused = false;
        attempt("move", [&](Streamer& streamer, Failure& why) {
            if (streamer.move(moves, behind, why)) return true;
            refused = why.kind == Failure::Kind::bad_value;
            return refused;
        });
        return !refused;
    }

    std::shared_ptr<PythonExpander> python_;  // null: packed chunks are decoded
    std::unique_ptr<Streamer> engine_;
    std::unique_ptr<weights::GivingWay> giving_way_;  // before the engine's end
};

using Lists = std::vector<std::vector<GroupIndex>>;

Schedule schedule_of(std::vector<GroupIndex> order, std::vector<GroupIndex> start, Lists before,
                     Lists after, uint32_t next) {
    return {std::move(order), std::move(start), std::move(before), std::move(after), next};
}

}  // namespace

void bind_weights(nb::module_& module) {
    bind_staged_chunk(module);
    nb::class_<StreamerEngine> engine(module, "StreamerEngine");
    engine
        .def(nb::init<std::shared_ptr<Device>, uint64_t, uint64_t,
                      const std::vector<StreamerEngine::Source>&, uint64_t,
                      std::pair<uint64_t, uint64_t>,
                      const std::variant<StreamerEngine::Decoding, nb::object>&>(),
             nb::arg("device"), nb::arg("ring_address"), nb::arg("ring_bytes"), nb::arg("groups"),
             nb::arg("chunk_bytes"), nb::arg("staging"), nb::arg("expand"),
             "Groups are (name, device address, host address, bytes, staged chunks); the staging "
             "is (address, bytes of a slot); what expands is the two kernels, or an object with "
             "expand() and give_up().")
        .def(
            "add_schedule",
            [](StreamerEngine& self, std::vector<GroupIndex> order, std::vector<GroupIndex> start,
               Lists before, Lists after, uint32_t next) {
                return self.add(schedule_of(std::move(order), std::move(start), std::move(before),
                                            std::move(after), next));
            },
            nb::arg("order"), nb::arg("start"), nb::arg("before"), nb::arg("after"),
            nb::arg("next"))
        .def(
            "replace_schedule",
            [](StreamerEngine& self, uint32_t number, std::vector<GroupIndex> order,
               std::vector<GroupIndex> start, Lists before, Lists after, uint32_t next) {
                self.replace(number, schedule_of(std::move(order), std::move(start),
                                                 std::move(before), std::move(after), next));
            },
            nb::arg("number"), nb::arg("order"), nb::arg("start"), nb::arg("before"),
            nb::arg("after"), nb::arg("next"))
        .def("follow", &StreamerEngine::follow, nb::arg("number"))
        .def("enter", &StreamerEngine::enter, nb::arg("group"), nb::arg("stream"),
             nb::sig("def enter(self, group: int, stream: object) -> bool | None"),
             "Whether it was on its way. None, here and below: the memory of the group was taken "
             "away, and nothing was done.")
        .def("leave", &StreamerEngine::leave, nb::arg("group"), nb::arg("stream"),
             nb::sig("def leave(self, group: int, stream: object) -> None"))
        .def("prefetch", &StreamerEngine::prefetch, nb::arg("group"), nb::arg("urgent"))
        .def("ensure", &StreamerEngine::ensure, nb::arg("group"))
        .def("on_its_way", &StreamerEngine::on_its_way, nb::arg("group"))
        .def("pin", &StreamerEngine::pin, nb::arg("group"), nb::arg("pinned"))
        .def("evict", &StreamerEngine::evict, nb::arg("group"))
        .def("synchronize", &StreamerEngine::synchronize)
        .def("counters", &StreamerEngine::counters, nb::sig("def counters(self) -> dict[str, int]"))
        .def("give_way_to", &StreamerEngine::give_way_to, nb::arg("pool"), nb::arg("stream"),
             nb::sig("def give_way_to(self, pool: int, stream: object) -> None"))
        .def("settle", &StreamerEngine::settle, nb::arg("group"), nb::arg("address"),
             nb::arg("nbytes"), nb::arg("stream"),
             nb::sig("def settle(self, group: int, address: int, nbytes: int, stream: object) "
                     "-> bool"))
        .def("move", &StreamerEngine::move, nb::arg("moves"))
        .def("settled", &StreamerEngine::settled)
        .def("gave_way", &StreamerEngine::gave_way)
        .def("log_copies", &StreamerEngine::log_copies, nb::arg("on"))
        .def("time_copies", &StreamerEngine::time_copies)
        .def("copy_times", &StreamerEngine::copy_times, nb::arg("since"),
             "The last two copies of each group: group, and begin and end in seconds.")
        .def_prop_ro("stream_ids", &StreamerEngine::stream_ids);
    refuse_copies(engine);
    module.attr("STAGING_SLOTS") = 2 * weights::Staging::kSlots;
}

}  // namespace vramkit
