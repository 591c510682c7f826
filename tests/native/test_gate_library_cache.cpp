// The gate's reader of /etc/ld.so.cache.
#include "gate/library_cache.h"

#include <string>
#include <vector>

#include "testing.h"

namespace {

using Names = std::vector<std::pair<std::string, std::string>>;

void put_word(std::string& bytes, std::size_t at, std::uint32_t word) {
    bytes.replace(at, 4, reinterpret_cast<const char*>(&word), 4);
}

// As ldconfig writes it: header, entries, texts; positions count from the header.
std::string cache_of(const Names& names) {
    std::string bytes(48 + 24 * names.size(), '\0');
    bytes.replace(0, 20, "glibc-ld.so.cache1.1");
    put_word(bytes, 20, static_cast<std::uint32_t>(names.size()));
    for (std::size_t index = 0; index < names.size(); ++index) {
        put_word(bytes, 48 + 24 * index + 4, static_cast<std::uint32_t>(bytes.size()));
        bytes += names[index].first + '\0';
        put_word(bytes, 48 + 24 * index + 8, static_cast<std::uint32_t>(bytes.size()));
        bytes += names[index].second + '\0';
    }
    return bytes;
}

std::vector<std::string> found(const std::string& content, std::size_t wanted = 100) {
    std::vector<std::string> paths;
    vramkit::gate::each_cached(content, "libcuda.so.1", [&](std::string_view path) {
        paths.emplace_back(path);
        return paths.size() == wanted;
    });
    return paths;
}

const Names kNames = {{"libcuda.so", "/a/libcuda.so"},
                      {"libcuda.so.1", "/a/libcuda.so.1"},
                      {"libz.so.1", "/a/libz.so.1"},
                      {"libcuda.so.1", "/32/libcuda.so.1"}};

TEST(entries_of_the_name_are_found_until_one_will_do) {
    const std::string content = cache_of(kNames);
    CHECK((found(content) == std::vector<std::string>{"/a/libcuda.so.1", "/32/libcuda.so.1"}));
    CHECK((found(content, 1) == std::vector<std::string>{"/a/libcuda.so.1"}));
}

TEST(an_older_format_before_it_is_skipped) {
    std::string old(16 + 3 * 12, '\0');
    old.replace(0, 11, "ld.so-1.7.0");
    put_word(old, 12, 3);
    old.resize((old.size() + 7) / 8 * 8);
    CHECK_EQUAL(found(old + cache_of(kNames)).size(), std::size_t{2});
}

TEST(damaged_caches_give_no_entry_and_do_no_harm) {
    const std::string content = cache_of(kNames);
    CHECK(found("").empty());
    CHECK(found("something else").empty());
    for (std::size_t size = 0; size < content.size(); ++size) found(content.substr(0, size));
    std::string lying = content;
    put_word(lying, 20, 0xffffffff);
    CHECK_EQUAL(found(lying).size(), std::size_t{2});
    put_word(lying, 48 + 24 + 4, 0xfffffff0);
    CHECK_EQUAL(found(lying).size(), std::size_t{1});
    std::string old(16, '\0');
    old.replace(0, 11, "ld.so-1.7.0");
    put_word(old, 12, 0xffffffff);
    CHECK(found(old + content).empty());
}

TEST(the_cache_of_this_machine_can_be_read) {
    // libc is on every machine with a cache; a container may have none.
    FILE* file = std::fopen("/etc/ld.so.cache", "rb");
    if (file == nullptr) return;
    std::string content;
    char part[4096];
    for (std::size_t size; (size = std::fread(part, 1, sizeof part, file)) > 0;) {
        content.append(part, size);
    }
    std::fclose(file);
    CHECK(vramkit::gate::each_cached(content, "libc.so.6",
                                     [](std::string_view path) { return path.starts_with('/'); }));
}

}  // namespace
