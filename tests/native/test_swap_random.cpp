// Random lives of a program beside a model of what it wrote: allocations, handles and mappings come
// and go while chunks move.
#include <map>
#include <optional>
#include <random>
#include <vector>

#include "swap_bench.h"

using namespace swap_bench;

namespace {

constexpr std::uint64_t kUnit = kMiB / 4;  // a write fills whole units of a handle

// The value of each unit; none: undefined.
using Contents = std::vector<std::optional<std::uint32_t>>;

class Life {
  public:
    Life(const Card& card, Program& program, unsigned seed)
        : program_(program), random_(seed), addresses_(card, 96 * kMiB) {}

    void step() {
        switch (random_() % 16) {
            case 0:
            case 1:
                allocate();
                break;
            case 2:
                free();
                break;
            case 3:
                create();
                break;
            case 4:
                release();
                break;
            case 5:
            case 6:
                map();
                break;
            case 7:
                unmap();
                break;
            case 8:
                allow();
                break;
            case 9:
            case 10:
                write_block();
                break;
            case 11:
            case 12:
                write_handle();
                break;
            case 13:
                program_.swap_out(random_() % (40 * kMiB));
                break;
            case 14:
                program_.swap_out();
                CHECK_EQUAL(program_.engine->usage().resident, 0U);
                break;
            default:
                program_.swap_in();
        }
        check_whole(*program_.engine);
        program_.check_credits();
    }
    void end() {
        CHECK_EQUAL(program_.make_all_resident(), 0U);
        for (const auto& [address, block] : blocks_) check(address, block.bytes, block.contents);
        for (const auto& [address, mapping] : mappings_) check_mapping(address, mapping);
        while (!blocks_.empty()) free();
        program_.unmap(addresses_.address, addresses_.bytes);
        for (auto& [id, handle] : handles_) {
            while (handle.references > 0) program_.release(id), --handle.references;
        }
        program_.swap_out();
        const Usage usage = program_.engine->usage();
        CHECK_EQUAL(usage.unbacked + usage.swapped, 0U);
    }

  private:
    struct Block {
        std::uint64_t bytes = 0;
        Contents contents;  // of the whole block
    };
    struct Handle {
        std::uint64_t bytes = 0;
        int references = 1, mappings = 0;
        Contents contents;
    };
    struct Mapping {
        std::uint64_t id = 0;
        CUmemAccess_flags access = CU_MEM_ACCESS_FLAGS_PROT_NONE;
    };

    template <typename Map>
    typename Map::iterator any(Map& map) {
        return std::next(map.begin(), static_cast<int>(random_() % map.size()));
    }
    std::uint32_t value() { return random_() % 3 == 0 ? 0 : static_cast<std::uint32_t>(random_()); }
    static void check(std::uint64_t address, std::uint64_t bytes, const Contents& contents) {
        const std::uint64_t unit = bytes / contents.size();
        for (std::size_t number = 0; number < contents.size(); ++number) {
            if (!contents[number]) continue;
            CHECK(Program::has(address + number * unit, unit, *contents[number]));
        }
    }
    // The same bytes at home and where they are mapped.
    void check_mapping(std::uint64_t address, const Mapping& mapping) {
        const Handle& handle = handles_.at(mapping.id);
        check(mapping.id, handle.bytes, handle.contents);
        check(address, handle.bytes, handle.contents);
        const CUmemAccessDesc own = access_of(mapping.access);
        CHECK_EQUAL(program_.engine->access(address + kUnit, own.location),
                    static_cast<unsigned long long>(own.flags));
        CHECK_EQUAL(program_.engine->handle_at(address + kUnit).value_or(0), mapping.id);
    }

    void allocate() {
        if (blocks_.size() > 10) return;
        const std::uint64_t bytes =
            random_() % 12 == 0 ? 16 * kMiB
                                : 4 * (1 + random_() % (std::uint64_t{1} << (8 + random_() % 13)));
        blocks_[program_.allocate(bytes)] = {bytes, Contents(1)};
    }
    void free() {
        if (blocks_.empty()) return;
        const auto block = any(blocks_);
        program_.free(block->first);
        blocks_.erase(block);
    }
    void write_block() {
        if (blocks_.empty()) return;
        auto& [address, block] = *any(blocks_);
        program_.make_resident(address, block.bytes);
        check(address, block.bytes, block.contents);
        block.contents[0] = value();
        program_.write(address, block.bytes, *block.contents[0]);
        program_.synchronize();
    }

    void create() {
        if (handles_.size() > 6) return;
        const std::uint64_t bytes = 2 * kMiB * (1 + random_() % 3);
        const std::uint64_t id = program_.create(bytes);
        CHECK(!program_.engine->find(id));
        handles_[id] = {bytes, 1, 0, Contents(bytes / kUnit)};
    }
    void release() {
        if (handles_.empty()) return;
        const auto handle = any(handles_);
        if (random_() % 4 == 0) {
            CHECK(program_.engine->retain(handle->first));
            ++handle->second.references;
        } else if (handle->second.references > 0) {
            program_.release(handle->first);
            --handle->second.references;
            drop_if_unused(handle);
        } else {
            std::uint64_t freed = 0;
            Failure why;
            CHECK(!program_.engine->release(handle->first, freed, why));
            CHECK_EQUAL(why.code, CUDA_ERROR_INVALID_VALUE);
        }
    }
    void drop_if_unused(std::map<std::uint64_t, Handle>::iterator handle) {
        if (handle->second.references + handle->second.mappings > 0) return;
        handles_.erase(handle);
    }
    bool overlaps(std::uint64_t address, std::uint64_t bytes) {
        for (const auto& [begin, mapping] : mappings_) {
            if (begin < address + bytes && address < begin + handles_.at(mapping.id).bytes) {
                return true;
            }
        }
        return false;
    }
    std::uint64_t any_address(std::uint64_t bytes) {
        return addresses_.address +
               random_() % ((addresses_.bytes - bytes) / (2 * kMiB) + 1) * 2 * kMiB;
    }
    void map() {
        if (handles_.empty()) return;
        auto& [id, handle] = *any(handles_);
        const std::uint64_t address = any_address(handle.bytes);
        const bool is_right = handle.references > 0 && !overlaps(address, handle.bytes);
        Failure why;
        CHECK_EQUAL(program_.engine->map(id, address, handle.bytes, why), is_right);
        if (!is_right) return;
        ++handle.mappings;
        mappings_[address] = {id, CU_MEM_ACCESS_FLAGS_PROT_NONE};
        if (random_() % 3 == 0) return;
        program_.allow(address, handle.bytes, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
        mappings_[address].access = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    }
    // A random range: of whole mappings, or one that cuts some.
    void unmap() {
        const std::uint64_t bytes = 2 * kMiB * (1 + random_() % 10);
        const std::uint64_t address = any_address(bytes);
        bool is_whole = true;
        std::vector<std::uint64_t> inside;
        for (const auto& [begin, mapping] : mappings_) {
            const std::uint64_t end = begin + handles_.at(mapping.id).bytes;
            if (begin >= address + bytes || end <= address) continue;
            inside.push_back(begin);
            is_whole = is_whole && begin >= address && end <= address + bytes;
        }
        std::uint64_t freed = 0;
        Failure why;
        CHECK_EQUAL(program_.engine->unmap(address, bytes, freed, why), is_whole);
        program_.credits.give(freed);
        if (!is_whole) return;
        for (const std::uint64_t begin : inside) {
            const auto handle = handles_.find(mappings_[begin].id);
            mappings_.erase(begin);
            --handle->second.mappings;
            drop_if_unused(handle);
            CHECK(!program_.engine->owns_mapping(begin));
        }
    }
    void allow() {
        if (mappings_.empty()) return;
        auto& [address, mapping] = *any(mappings_);
        mapping.access = std::array{CU_MEM_ACCESS_FLAGS_PROT_NONE, CU_MEM_ACCESS_FLAGS_PROT_READ,
                                    CU_MEM_ACCESS_FLAGS_PROT_READWRITE}[random_() % 3];
        program_.allow(address, handles_.at(mapping.id).bytes, mapping.access);
    }
    // Some units, through a mapping.
    void write_handle() {
        if (mappings_.empty()) return;
        auto& [address, mapping] = *any(mappings_);
        Handle& handle = handles_.at(mapping.id);
        program_.make_resident(address, handle.bytes);
        check_mapping(address, mapping);
        if (mapping.access != CU_MEM_ACCESS_FLAGS_PROT_READWRITE) return;
        const std::size_t units = handle.contents.size();
        const std::size_t begin = random_() % 2 == 0 ? 0 : random_() % units;
        const std::size_t count = begin == 0 ? units : 1 + random_() % (units - begin);
        const std::uint32_t with = value();
        program_.write(address + begin * kUnit, count * kUnit, with);
        program_.synchronize();
        for (std::size_t unit = begin; unit < begin + count; ++unit) handle.contents[unit] = with;
    }

    Program& program_;
    std::mt19937 random_;
    const Reservation addresses_;
    std::map<std::uint64_t, Block> blocks_;
    std::map<std::uint64_t, Handle> handles_;
    std::map<std::uint64_t, Mapping> mappings_;
};

}  // namespace

TEST(bytes_survive_thousands_of_random_steps) {
    Counters all;
    for (unsigned seed = 0; seed < static_cast<unsigned>(testing::rounds(8, 200) / testing::kFewer);
         ++seed) {
        const Card card(kWithData);
        {
            Program program(card, seed % 3 > 0 ? hashing() : small(), 200 * kMiB);
            Life life(card, program, seed);
            for (int step = 0; step < 350; ++step) life.step();
            life.end();
            const Counters counters = program.engine->counters();
            all.copies_in += counters.copies_in;
            all.dropped += counters.dropped;
            all.zeros += counters.zeros;
        }
        check_order(card);
        check_nothing_left();
    }
    CHECK(all.copies_in > 300 / testing::kFewer);
    CHECK(all.dropped > 50 / testing::kFewer);
    CHECK(all.zeros > 50 / testing::kFewer);
}
