// Says how much host memory is left by a machine laid out in a folder, and by what.
#include "swap/host_room.h"

#include <cstdio>

int main(int, char** arguments) {
    const vramkit::swap::HostRoom room = vramkit::swap::host_room(arguments[1]);
    std::printf("%llu %s\n", static_cast<unsigned long long>(room.bytes), room.by.c_str());
}
