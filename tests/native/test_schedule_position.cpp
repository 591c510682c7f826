// Which step a program is taken to be at, without a card.
#include "weights/schedule_position.h"

#include <utility>
#include <vector>

#include "testing.h"

using namespace vramkit::weights;

namespace {

// Lists that name their own step: start 90, before step i 100 + i, after it 200 + i.
Schedule schedule_of(std::vector<GroupIndex> order, std::uint32_t next) {
    Schedule made;
    for (GroupIndex step = 0; step < order.size(); ++step) {
        made.before.push_back({100 + step});
        made.after.push_back({200 + step});
    }
    made.start = {90};
    made.order = std::move(order);
    made.next = next;
    return made;
}

using List = Schedule::List;

}  // namespace

TEST(each_step_has_its_lists) {
    SchedulePosition position;
    position.add(schedule_of({5, 6}, 0));
    CHECK(position.after() == nullptr);
    CHECK(position.advance_to(5));
    CHECK(position.due() == List{90} && position.before() == List{100});
    CHECK(*position.after() == List{200});
    CHECK(position.advance_to(6));
    CHECK(position.due() == List{200} && position.before() == List{101});
    CHECK(*position.after() == List{201});
    CHECK_EQUAL(position.off_order(), std::uint64_t{0});
}

TEST(behind_the_last_step_the_next_schedule_follows) {
    SchedulePosition position;
    position.add(schedule_of({1, 2}, 1));
    position.add(schedule_of({3, 1}, 0));
    for (const GroupIndex group : {1, 2, 3, 1, 1, 2, 3}) CHECK(position.advance_to(group));
    CHECK_EQUAL(position.off_order(), std::uint64_t{0});
    CHECK(position.before() == List{100});
}

TEST(a_group_that_no_schedule_knows_changes_nothing) {
    SchedulePosition position;
    CHECK(!position.advance_to(1));
    CHECK_EQUAL(position.off_order(), std::uint64_t{0});  // nothing was expected
    position.add(schedule_of({1, 2}, 0));
    CHECK(position.advance_to(1));
    CHECK(!position.advance_to(7));
    CHECK_EQUAL(position.off_order(), std::uint64_t{1});
    CHECK(position.advance_to(2));
    CHECK_EQUAL(position.off_order(), std::uint64_t{1});
}

TEST(out_of_order_the_step_behind_the_same_group_is_preferred) {
    SchedulePosition position;
    position.add(schedule_of({1, 2, 3, 4}, 0));
    position.add(schedule_of({1, 3, 2, 4}, 1));
    CHECK(position.advance_to(1));
    CHECK(position.advance_to(3));  // behind 1 as in the second schedule, not the nearer step 2
    CHECK(position.before() == List{101});
    CHECK_EQUAL(position.off_order(), std::uint64_t{1});
    CHECK(position.advance_to(2) && position.advance_to(4) && position.advance_to(1));
    CHECK_EQUAL(position.off_order(), std::uint64_t{1});
}

TEST(out_of_order_this_schedule_is_preferred_and_in_it_the_next_step) {
    SchedulePosition position;
    position.add(schedule_of({9, 8, 9, 1}, 0));
    position.add(schedule_of({1, 8, 2, 8, 3}, 1));
    position.follow(1);
    CHECK(position.advance_to(1) && position.advance_to(8) && position.advance_to(2));
    CHECK(position.advance_to(1));  // back to the start
    CHECK(position.before() == List{100});
    CHECK(position.advance_to(3));
    CHECK(position.before() == List{104});
    CHECK(position.advance_to(8));  // behind neither 3: of steps 1 and 3, the next from the start
    CHECK(position.before() == List{101});
    CHECK_EQUAL(position.off_order(), std::uint64_t{3});
}

TEST(a_shorter_schedule_in_the_place_of_this_one_is_at_its_end) {
    SchedulePosition position;
    position.add(schedule_of({1, 2, 3}, 0));
    for (const GroupIndex group : {1, 2, 3}) CHECK(position.advance_to(group));
    position.replace(0, schedule_of({1, 2}, 0));
    CHECK(*position.after() == List{201});
    CHECK(position.advance_to(1));
    CHECK_EQUAL(position.off_order(), std::uint64_t{0});
}
