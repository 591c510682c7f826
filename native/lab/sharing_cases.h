// What the lab asks of two programs that share a card: the cost of a switch, and what is left of
// their turns. docs/sharing-model.md has the figures.
#pragma once

#include "lab/two_programs.h"

namespace vramkit::lab {

// One switch and the first launch after it, beside a launch of the other program before it. Seconds
// of the host's clock.
struct Switch {
    double launch = 0;
    double begin = 0, end = 0;

    // What the switch adds to the launch.
    double seconds() const { return end - begin - launch; }
};

// `empty`: both programs' memory is on the host when it begins.
bool one_switch(TwoPrograms& programs, int winner, bool empty, Switch& measured, Failure& why);

struct Turns {
    std::uint64_t launches = 0;
    double seconds = 0;
};

// Turns in alternation. A turn ends with the first wait for a window of launches after its quantum:
// what was launched runs to its end.
bool take_turns(TwoPrograms& programs, int turns, double quantum, int window, Turns& measured,
                Failure& why);

}  // namespace vramkit::lab
