// The cases, as sequences of switches and launches.
#include "lab/sharing_cases.h"

namespace vramkit::lab {

bool one_switch(TwoPrograms& programs, int winner, bool empty, Switch& measured, Failure& why) {
    const int loser = 1 - winner;
    if (!programs.run(loser, 1, why)) return false;
    const double before = programs.seconds();
    if (!programs.run(loser, 1, why)) return false;
    measured.launch = programs.seconds() - before;
    if (empty && !(programs.send_home(loser, why) && programs.send_home(winner, why))) return false;
    measured.begin = programs.seconds();
    if (!programs.switch_to(winner, why) || !programs.run(winner, 1, why)) return false;
    measured.end = programs.seconds();
    return true;
}

bool take_turns(TwoPrograms& programs, int turns, double quantum, int window, Turns& measured,
                Failure& why) {
    const double start = programs.seconds();
    for (int turn = 0; turn < turns; ++turn) {
        const double begin = programs.seconds();
        if (!programs.switch_to(turn % 2, why)) return false;
        do {
            if (!programs.run(turn % 2, window, why)) return false;
            measured.launches += static_cast<std::uint64_t>(window);
        } while (programs.seconds() - begin < quantum);
    }
    measured.seconds = programs.seconds() - start;
    return true;
}

}  // namespace vramkit::lab
