# What makes builds quick: a compiler cache where one is installed, and precompiled headers.
#
# With precompiled headers ccache hits only in the folder that filled it. Who asks for a cache by
# CMAKE_CXX_COMPILER_LAUNCHER shares it between folders, so that none are precompiled then.
if(CMAKE_CXX_COMPILER_LAUNCHER)
    set(precompile OFF)
else()
    set(precompile ON)
endif()
option(VRAMKIT_PRECOMPILE "Precompile the headers of the standard library" ${precompile})

if(NOT CMAKE_CXX_COMPILER_LAUNCHER)
    find_program(VRAMKIT_COMPILER_CACHE NAMES ccache sccache
        DOC "A compiler cache, used where there is one")
    if(VRAMKIT_COMPILER_CACHE)
        set(CMAKE_CXX_COMPILER_LAUNCHER ${VRAMKIT_COMPILER_CACHE})
    endif()
endif()
# ccache passes precompiled headers by unless it is told that these macros do not matter.
if(VRAMKIT_PRECOMPILE AND CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache$")
    list(PREPEND CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_SLOPPINESS=pch_defines,time_macros)
endif()

# Reading the standard headers is about half of the time of a file here: 0.7 of 1.5 s on average.
# Only they, and those of nanobind, are precompiled: a change in a header of ours compiles what
# includes it and no more. A source still includes what it uses; VRAMKIT_PRECOMPILE=OFF shows what
# is missing.
set(standard_headers <algorithm> <array> <atomic> <chrono> <condition_variable> <cstdint> <deque>
    <functional> <limits> <map> <memory> <mutex> <optional> <span> <string> <string_view> <thread>
    <unordered_map> <utility> <variant> <vector>)
function(precompile_standard_headers target)
    if(VRAMKIT_PRECOMPILE)
        target_precompile_headers(${target} PRIVATE ${standard_headers} ${ARGN})
    endif()
endfunction()
