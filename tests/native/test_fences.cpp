// Events of fences: used again, but not while a thread waits for them without the lock.
#include "base/fences.h"

#include "pool_bench.h"
#include "testing.h"

using namespace bench;
using vramkit::EventPool;
using vramkit::Fences;
using vramkit::StreamRef;

TEST(an_event_that_somebody_waits_for_is_not_used_again_before_it_is_back) {
    const Card card;
    EventPool events(card.call);
    Fences fences(events);
    const StreamRef stream = card.stream(true);
    CHECK(fences.record(stream.handle));
    const auto pinned = fences.pin_last();
    REQUIRE(pinned.has_value());
    fences.poll();
    CHECK(fences.has_passed(pinned->first));
    const CUevent another = events.take();
    CHECK(another != pinned->second);
    fences.unpin(*pinned, true);
    CHECK(events.take() == pinned->second);
    events.give(another);
    events.give(pinned->second);
}

TEST(what_the_driver_would_not_wait_for_keeps_its_event) {
    const Card card;
    EventPool events(card.call);
    Fences fences(events);
    const StreamRef stream = card.stream(true);
    card.occupy(stream);
    CHECK(fences.record(stream.handle));
    const Fences::Number number = fences.open() - 1;
    fences.unpin(*fences.pin_last(), false);
    CHECK(!fences.has_passed(number));
    gpu::sim().advance(2 * kSecond);
    fences.poll();
    CHECK(fences.has_passed(number));
    CHECK(!fences.pin_last().has_value());
}

TEST(a_stream_that_is_only_freed_on_needs_no_more_events_with_time) {
    const Card card;
    EventPool events(card.call);
    Fences fences(events);
    const StreamRef stream = card.stream(true);
    for (int i = 0; i < 1000; ++i) {
        CHECK(fences.record(stream.handle));
        gpu::sim().advance(kSecond);
    }
    CHECK(card.calls("cuEventCreate") <= 10);
    CHECK(card.calls("cuEventQuery") <= 250);  // each answers for several events
}
