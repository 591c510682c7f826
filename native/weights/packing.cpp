// Counts, packs and unpacks bf16 weights. Pieces of chunks are shared out between threads.
#include "weights/packing.h"

#include <emmintrin.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <numeric>
#include <string>
#include <system_error>
#include <thread>

namespace vramkit::weights {
namespace {

static_assert(std::endian::native == std::endian::little, "packed chunks are little-endian");

constexpr std::uint8_t kException = kExponentsInTable;

// Work on pieces

struct Piece {
    std::size_t chunk = 0;
    std::size_t number = 0;  // in its chunk
};

std::uint64_t pieces_of(const ChunkPlan& plan) {
    return (plan.count + kPieceWeights - 1) / kPieceWeights;
}

std::vector<Piece> pieces_of(std::span<const ChunkPlan> plans) {
    std::vector<Piece> pieces;
    for (std::size_t chunk = 0; chunk < plans.size(); ++chunk) {
        const std::uint64_t count = pieces_of(plans[chunk]);
        for (std::size_t number = 0; number < count; ++number) pieces.push_back({chunk, number});
    }
    return pieces;
}

// The weights of a piece, from the first one of its chunk on.
struct Extent {
    std::uint64_t first = 0;
    std::uint64_t count = 0;
};

Extent extent_of(const ChunkPlan& plan, std::size_t piece) {
    const std::uint64_t first = piece * kPieceWeights;
    return {first, std::min(kPieceWeights, plan.count - first)};
}

// Calls body(i) for each i below `jobs`. It must not throw.
template <typename Body>
void in_parallel(std::size_t jobs, unsigned threads, const Body& body) {
    std::atomic<std::size_t> next{0};
    const auto work = [&] {
        for (std::size_t job; (job = next.fetch_add(1, std::memory_order_relaxed)) < jobs;) {
            body(job);
        }
    };
    std::vector<std::jthread> others;
    const std::size_t wanted = std::min<std::size_t>(threads, jobs);
    others.reserve(wanted);
    try {
        for (std::size_t each = 1; each < wanted; ++each) others.emplace_back(work);
    } catch (const std::system_error&) {
        // Fewer threads do the same work.
    }
    work();
}

// Counting

using Histogram = std::array<std::uint32_t, 256>;

// Neighbours mostly have the same few exponents: counters of their own keep an increment from
// waiting for the one before.
Histogram count_exponents(std::span<const std::uint16_t> weights) {
    std::array<Histogram, 4> counts{};
    std::size_t at = 0;
    for (; at + 4 <= weights.size(); at += 4) {
        std::uint64_t four;
        std::memcpy(&four, weights.data() + at, sizeof four);
        ++counts[0][(four >> 7) & 0xff];
        ++counts[1][(four >> 23) & 0xff];
        ++counts[2][(four >> 39) & 0xff];
        ++counts[3][(four >> 55) & 0xff];
    }
    for (; at < weights.size(); ++at) ++counts[0][(weights[at] >> 7) & 0xff];
    for (std::size_t exponent = 0; exponent < counts[0].size(); ++exponent) {
        counts[0][exponent] += counts[1][exponent] + counts[2][exponent] + counts[3][exponent];
    }
    return counts[0];
}

// The table and the exceptions of a chunk, from the histograms of its pieces.
void finish(ChunkPlan& plan, std::span<const Histogram> pieces) {
    std::array<std::uint64_t, 256> total{};
    for (const Histogram& piece : pieces) {
        for (std::size_t exponent = 0; exponent < total.size(); ++exponent) {
            total[exponent] += piece[exponent];
        }
    }
    std::array<std::uint8_t, 256> order;
    std::iota(order.begin(), order.end(), std::uint8_t{0});
    std::stable_sort(order.begin(), order.end(), [&](std::uint8_t left, std::uint8_t right) {
        return total[left] > total[right];
    });
    for (unsigned index = 0; index < kExponentsInTable; ++index) {
        if (total[order[index]] > 0) plan.table[index] = order[index];
    }
    for (const Histogram& piece : pieces) {
        plan.before.push_back(static_cast<std::uint32_t>(plan.exceptions));
        for (std::size_t rank = kExponentsInTable; rank < order.size(); ++rank) {
            plan.exceptions += piece[order[rank]];
        }
    }
}

// Packing

// SSE2 is part of x86-64: no other instructions are needed, or chosen at run time.
using Vector = __m128i;
constexpr std::size_t kLanes = 16;
constexpr std::size_t kBlock = 2 * kLanes;

Vector everywhere(std::uint8_t value) { return _mm_set1_epi8(static_cast<char>(value)); }

// The low bytes of 16 numbers of 16 bits.
Vector low_bytes(Vector first, Vector second) {
    const Vector mask = _mm_set1_epi16(0xff);
    return _mm_packus_epi16(_mm_and_si128(first, mask), _mm_and_si128(second, mask));
}

Vector rotated(Vector weights) {
    return _mm_or_si128(_mm_slli_epi16(weights, 1), _mm_srli_epi16(weights, 15));
}

// Finds the index of an exponent by comparison with each entry of the table.
class Indexer {
  public:
    explicit Indexer(const std::array<std::uint8_t, 16>& table) {
        for (unsigned index = 0; index < kExponentsInTable; ++index) {
            // An entry without use repeats an earlier one, which it then stands for, or matches
            // nothing.
            const auto same = std::find(table.begin(), table.begin() + index, table[index]);
            exponents_[index] = everywhere(table[index]);
            inverted_[index] =
                everywhere(static_cast<std::uint8_t>(kException ^ (same - table.begin())));
        }
    }

    Vector operator()(Vector exponents) const {
        // Of indices with their four bits inverted: where nothing matches, 15 comes out.
        Vector found = _mm_setzero_si128();
        for (unsigned index = 0; index < kExponentsInTable; ++index) {
            const Vector same = _mm_cmpeq_epi8(exponents, exponents_[index]);
            found = _mm_or_si128(found, _mm_and_si128(same, inverted_[index]));
        }
        return _mm_xor_si128(found, everywhere(kException));
    }

  private:
    alignas(16) Vector exponents_[kExponentsInTable];
    alignas(16) Vector inverted_[kExponentsInTable];
};

struct Encoded {
    alignas(16) std::array<std::uint8_t, kBlock> low;
    alignas(16) std::array<std::uint8_t, kBlock / 2> pairs;  // of indices
    std::uint32_t exceptions = 0;                            // bit i: weight i is one
};

// 32 weights. Costs some 130 instructions, of which 90 look for indices.
[[gnu::always_inline]] inline void encode(const Indexer& indexer, const std::uint16_t* weights,
                                          Encoded& encoded) {
    Vector pairs[2];
    encoded.exceptions = 0;
    for (std::size_t half = 0; half < 2; ++half) {
        const auto* const from = reinterpret_cast<const Vector*>(weights + half * kLanes);
        const Vector first = _mm_loadu_si128(from), second = _mm_loadu_si128(from + 1);
        const Vector low = low_bytes(rotated(first), rotated(second));
        _mm_store_si128(reinterpret_cast<Vector*>(&encoded.low[half * kLanes]), low);
        const Vector indices =
            indexer(low_bytes(_mm_srli_epi16(first, 7), _mm_srli_epi16(second, 7)));
        const Vector marked = _mm_cmpeq_epi8(indices, everywhere(kException));
        encoded.exceptions |= static_cast<std::uint32_t>(_mm_movemask_epi8(marked))
                              << (half * kLanes);
        pairs[half] = _mm_or_si128(indices, _mm_srli_epi16(indices, 4));
    }
    _mm_store_si128(reinterpret_cast<Vector*>(encoded.pairs.data()), low_bytes(pairs[0], pairs[1]));
}

// The lists of exceptions of one piece.
struct Exceptions {
    std::byte* positions = nullptr;
    std::byte* values = nullptr;
    std::uint64_t left = 0;  // how many the plan has room for

    bool add(std::uint32_t position, std::uint16_t value) {
        if (left == 0) return false;
        --left;
        std::memcpy(positions, &position, sizeof position);
        std::memcpy(values, &value, sizeof value);
        positions += sizeof position;
        values += sizeof value;
        return true;
    }
};

// Where the blocks of one piece go.
struct Target {
    std::byte* low;
    std::byte* pairs;
    Exceptions exceptions;

    // The first `count` weights of a block, which is all but at the end of a chunk. False: more
    // exceptions than were counted.
    [[gnu::always_inline]] bool put(const Encoded& encoded, const std::uint16_t* weights,
                                    std::uint64_t at, std::size_t count) {
        std::memcpy(low + at, encoded.low.data(), count);
        std::memcpy(pairs + at / 2, encoded.pairs.data(), (count + 1) / 2);
        for (std::uint32_t rest = encoded.exceptions; rest != 0; rest &= rest - 1) {
            const auto each = static_cast<std::uint32_t>(std::countr_zero(rest));
            if (!exceptions.add(static_cast<std::uint32_t>(at) + each, weights[each])) return false;
        }
        return true;
    }
};

// False: these are not the weights that were counted.
bool pack_piece(const ChunkPlan& plan, const std::uint16_t* weights, std::size_t piece,
                std::byte* packed) {
    const PackedLayout layout(plan.count, plan.exceptions);
    const Extent extent = extent_of(plan, piece);
    const std::uint64_t before = plan.before[piece];
    const bool last = piece + 1 == plan.before.size();
    Target target{packed + layout.low_bytes,
                  packed + layout.indices,
                  {packed + layout.positions + 4 * before, packed + layout.values + 2 * before,
                   (last ? plan.exceptions : plan.before[piece + 1]) - before}};
    const Indexer indexer(plan.table);
    Encoded encoded;
    const std::uint64_t end = extent.first + extent.count;
    std::uint64_t at = extent.first;
    for (; at + kBlock <= end; at += kBlock) {
        encode(indexer, weights + at, encoded);
        if (!target.put(encoded, weights + at, at, kBlock)) return false;
    }
    if (const std::size_t count = end - at; count > 0) {
        std::array<std::uint16_t, kBlock> block{};
        std::memcpy(block.data(), weights + at, 2 * count);
        encode(indexer, block.data(), encoded);
        encoded.exceptions &= (std::uint32_t{1} << count) - 1;
        if (count % 2 != 0) encoded.pairs[count / 2] &= 0x0f;
        if (!target.put(encoded, block.data(), at, count)) return false;
    }
    return target.exceptions.left == 0;
}

void clear(std::byte* packed, std::uint64_t from, std::uint64_t to) {
    std::memset(packed + from, 0, to - from);
}

void write_frame(const ChunkPlan& plan, std::byte* packed) {
    const PackedLayout layout(plan.count, plan.exceptions);
    const PackedHeader header{kPackedMark, plan.count, plan.exceptions, 0, plan.table};
    std::memcpy(packed, &header, sizeof header);
    clear(packed, sizeof header, layout.low_bytes);
    clear(packed, layout.low_bytes + plan.count, layout.indices);
    clear(packed, layout.indices + (plan.count + 1) / 2, layout.positions);
    clear(packed, layout.positions + 4 * plan.exceptions, layout.values);
    clear(packed, layout.values + 2 * plan.exceptions, layout.end);
}

void copy_piece(const ChunkPlan& plan, const std::uint16_t* weights, std::size_t piece,
                std::byte* stored) {
    const Extent extent = extent_of(plan, piece);
    std::memcpy(stored + 2 * extent.first, weights + extent.first, 2 * extent.count);
    if (piece == 0) clear(stored, plan.plain_bytes(), plan.stored_bytes());
}

// Unpacking

template <typename T>
T number_at(std::span<const std::byte> bytes, std::uint64_t at) {
    T value;
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
}

bool refuse(Failure& why, const std::string& what) {
    why = Failure::bad_value("this is no packed chunk of bf16-12: " + what);
    return false;
}

}  // namespace

std::vector<ChunkPlan> plan_packing(std::span<const std::uint16_t> weights,
                                    std::uint64_t chunk_weights, bool always, unsigned threads) {
    std::vector<ChunkPlan> plans;
    for (std::uint64_t first = 0; first < weights.size(); first += chunk_weights) {
        ChunkPlan& plan = plans.emplace_back();
        plan.first = first;
        plan.count = std::min<std::uint64_t>(chunk_weights, weights.size() - first);
    }
    const std::vector<Piece> pieces = pieces_of(plans);
    std::vector<Histogram> counted(pieces.size());
    in_parallel(pieces.size(), threads, [&](std::size_t job) {
        const ChunkPlan& plan = plans[pieces[job].chunk];
        const Extent extent = extent_of(plan, pieces[job].number);
        counted[job] = count_exponents(weights.subspan(plan.first + extent.first, extent.count));
    });
    std::span<const Histogram> rest(counted);
    for (ChunkPlan& plan : plans) {
        const std::uint64_t own = pieces_of(plan);
        finish(plan, rest.first(own));
        plan.packed = always || plan.packed_bytes() < plan.plain_bytes();
        rest = rest.subspan(own);
    }
    return plans;
}

bool pack(std::span<const std::uint16_t> weights, std::span<const ChunkPlan> plans,
          std::span<std::byte> stored, unsigned threads, Failure& why) {
    std::uint64_t planned = 0, needed = 0;
    std::vector<std::byte*> starts;
    for (const ChunkPlan& plan : plans) {
        starts.push_back(stored.data() + needed);
        planned += plan.count;
        needed += plan.stored_bytes();
    }
    if (weights.size() != planned) {
        why = Failure::bad_value("there are " + std::to_string(weights.size()) +
                                 " weights; the plan is of " + std::to_string(planned));
        return false;
    }
    if (stored.size() != needed) {
        why = Failure::bad_value("the weights take " + std::to_string(needed) +
                                 " bytes as planned; there are " + std::to_string(stored.size()));
        return false;
    }
    const auto* const source = reinterpret_cast<const std::byte*>(weights.data());
    if (source < stored.data() + stored.size() && stored.data() < source + weights.size_bytes()) {
        why = Failure::bad_value("weights cannot be packed onto themselves: use other memory");
        return false;
    }
    const std::vector<Piece> pieces = pieces_of(plans);
    std::atomic<bool> differ{false};
    in_parallel(pieces.size(), threads, [&](std::size_t job) {
        const auto [chunk, number] = pieces[job];
        const ChunkPlan& plan = plans[chunk];
        const std::uint16_t* const from = weights.data() + plan.first;
        if (!plan.packed) {
            copy_piece(plan, from, number, starts[chunk]);
            return;
        }
        if (number == 0) write_frame(plan, starts[chunk]);
        if (!pack_piece(plan, from, number, starts[chunk])) differ = true;
    });
    if (differ) {
        why = Failure::bad_value(
            "the weights are not those that were planned: plan again, and do not change them until "
            "they are packed");
    }
    return !differ;
}

bool read_packed(std::span<const std::byte> packed, PackedHeader& header, Failure& why) {
    if (packed.size() < kPackedHeaderBytes) {
        return refuse(why, "it has " + std::to_string(packed.size()) +
                               " bytes, and the header alone has " +
                               std::to_string(kPackedHeaderBytes));
    }
    header = number_at<PackedHeader>(packed, 0);
    if (header.mark != kPackedMark || header.reserved != 0 || header.table[kException] != 0) {
        return refuse(why, "its header is another's");
    }
    if (header.count == 0 || header.count > kMostWeightsInChunk ||
        header.exceptions > header.count) {
        return refuse(why, "it claims " + std::to_string(header.count) + " weights and " +
                               std::to_string(header.exceptions) + " exceptions");
    }
    const std::uint64_t bytes = PackedLayout(header.count, header.exceptions).end;
    if (packed.size() != bytes) {
        return refuse(why, "it has " + std::to_string(packed.size()) +
                               " bytes; by its header it has " + std::to_string(bytes));
    }
    return true;
}

bool unpack(std::span<const std::byte> packed, std::uint64_t first,
            std::span<std::uint16_t> weights, Failure& why) {
    PackedHeader header;
    if (!read_packed(packed, header, why)) return false;
    const std::uint64_t end = first + weights.size();
    if (first > header.count || weights.size() > header.count - first) {
        why = Failure::bad_value("weights " + std::to_string(first) + " to " + std::to_string(end) +
                                 " are not inside a chunk of " + std::to_string(header.count));
        return false;
    }
    const PackedLayout layout(header.count, header.exceptions);
    const auto* const low = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.low_bytes;
    const auto* const pairs = reinterpret_cast<const std::uint8_t*>(packed.data()) + layout.indices;
    const auto index = [&](std::uint64_t at) { return (pairs[at / 2] >> (4 * (at % 2))) & 0x0f; };

    const PairDecoder decode(header.table);
    std::uint64_t marked = 0;  // as exceptions
    const auto decode_one = [&](std::uint64_t at) {
        marked += index(at) == kException;
        const auto both = static_cast<std::uint8_t>(index(at));
        weights[at - first] = static_cast<std::uint16_t>(decode(both, low[at], 0));
    };
    std::uint64_t next = first;
    if (next < end && next % 2 != 0) decode_one(next++);
    for (; next + 2 <= end; next += 2) {
        const std::uint8_t pair = pairs[next / 2];
        marked += ((pair & 0x0f) == 0x0f) + (pair >= 0xf0);
        const std::uint32_t two = decode(pair, low[next], low[next + 1]);
        std::memcpy(&weights[next - first], &two, sizeof two);
    }
    if (next < end) decode_one(next);

    const auto position = [&](std::uint64_t number) {
        return number_at<std::uint32_t>(packed, layout.positions + 4 * number);
    };
    // The first exception of the range. In a damaged list it may be another one, which is noticed
    // below.
    std::uint64_t number = 0;
    for (std::uint64_t after = header.exceptions; number < after;) {
        const std::uint64_t middle = std::midpoint(number, after);
        if (position(middle) < first) {
            number = middle + 1;
        } else {
            after = middle;
        }
    }
    std::uint64_t least = first;
    for (; number < header.exceptions && position(number) < end; ++number, --marked) {
        const std::uint64_t at = position(number);
        const auto value = number_at<std::uint16_t>(packed, layout.values + 2 * number);
        if (at < least || index(at) != kException ||
            static_cast<std::uint8_t>(std::rotl(value, 1)) != low[at]) {
            return refuse(why, "exception " + std::to_string(number) + " is none");
        }
        least = at + 1;
        weights[at - first] = value;
    }
    if (marked != 0) return refuse(why, "an exception is not in the list");
    return true;
}

unsigned unpack_blocks(std::uint64_t count) {
    constexpr std::uint64_t of_block = std::uint64_t{16} * kUnpackThreads;
    return static_cast<unsigned>(std::max<std::uint64_t>(1, (count + of_block - 1) / of_block));
}

unsigned patch_blocks(std::uint64_t exceptions) {
    return static_cast<unsigned>(
        std::max<std::uint64_t>(1, (exceptions + kUnpackThreads - 1) / kUnpackThreads));
}

}  // namespace vramkit::weights
