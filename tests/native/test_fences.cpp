// Events of marks: used again, but not while a thread waits for them without the lock.
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
    Fences marks(events);
    const StreamRef stream = card.stream(true);
    CHECK(marks.record(stream.handle));
    const auto lent = marks.pin_last();
    REQUIRE(lent.has_value());
    marks.poll();
    CHECK(marks.has_passed(lent->first));
    const CUevent another = events.take();
    CHECK(another != lent->second);
    marks.unpin(*lent, true);
    CHECK(events.take() == lent->second);
    events.give(another);
    events.give(lent->second);
}

TEST(what_the_driver_would_not_wait_for_keeps_its_event) {
    const Card card;
    EventPool events(card.call);
    Fences marks(events);
    const StreamRef stream = card.stream(true);
    card.occupy(stream);
    CHECK(marks.record(stream.handle));
    const Fences::Number number = marks.open() - 1;
    marks.unpin(*marks.pin_last(), false);
    CHECK(!marks.has_passed(number));
    gpu::sim().advance(2 * kSecond);
    marks.poll();
    CHECK(marks.has_passed(number));
    CHECK(!marks.pin_last().has_value());
}

TEST(a_stream_that_is_only_freed_on_needs_no_more_events_with_time) {
    const Card card;
    EventPool events(card.call);
    Fences marks(events);
    const StreamRef stream = card.stream(true);
    for (int i = 0; i < 1000; ++i) {
        CHECK(marks.record(stream.handle));
        gpu::sim().advance(kSecond);
    }
    CHECK(card.calls("cuEventCreate") <= 10);
}
