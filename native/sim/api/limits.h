// What a card of the simulated kind can hold at most: the same for all profiles.
#pragma once

namespace vramkit::sim {

inline constexpr unsigned kMostThreadsInBlock = 1024;
inline constexpr unsigned kMostBlocks = 2147483647;  // on the first axis
inline constexpr unsigned kThreadsOfWarp = 32;
inline constexpr unsigned kMostBlocksOnMultiprocessor = 32;
// Shared memory. A block may ask for more than the first of these once its function allows it
// (cuFuncSetAttribute); beside what it asks for, each takes some for the system.
inline constexpr unsigned kMostSharedBytes = 48 * 1024;
inline constexpr unsigned kMostSharedBytesAllowed = 227 * 1024;
inline constexpr unsigned kSharedBytesOfMultiprocessor = 228 * 1024;
inline constexpr unsigned kSharedBytesOfSystem = 1024;

inline constexpr unsigned kMostPitch = 2147483647;
inline constexpr unsigned kTextureAlignment = 512;

}  // namespace vramkit::sim
