// Profiles of the simulated GPU: the TOML reader, inheritance, errors, and the cost of calls.
#include <stdlib.h>

#include <cmath>
#include <fstream>
#include <limits>
#include <locale>

#include "sim/profile/profile.h"
#include "sim/profile/toml.h"
#include "testing.h"

namespace {

using vramkit::sim::CallCost;
using vramkit::sim::find_profile;
using vramkit::sim::load_profile;
using vramkit::sim::parse_profile;
using vramkit::sim::Profile;
using vramkit::sim::ProfileOrError;
namespace toml = vramkit::sim::toml;
namespace fs = std::filesystem;

constexpr std::uint64_t KiB = 1024;
constexpr std::uint64_t MiB = 1024 * KiB;
constexpr std::uint64_t GiB = 1024 * MiB;

fs::path shipped() { return VRAMKIT_PROFILES; }

// A folder that is removed with everything in it.
class Folder {
  public:
    Folder() {
        std::string pattern = (fs::temp_directory_path() / "profiles-XXXXXX").string();
        REQUIRE(::mkdtemp(pattern.data()) != nullptr);
        path = pattern;
    }
    ~Folder() { fs::remove_all(path); }
    Folder(const Folder&) = delete;
    Folder& operator=(const Folder&) = delete;

    fs::path write(const std::string& name, const std::string& text) const {
        std::ofstream(path / name, std::ios::binary) << text;
        return path / name;
    }

    fs::path path;
};

std::string error_of(const ProfileOrError& result) {
    const auto* error = std::get_if<std::string>(&result);
    return error ? *error : "(no error)";
}

// The error of a text that extends h200; its own first line is line 1.
std::string extending(const std::string& text) {
    return error_of(parse_profile(text + "\n", "x.toml", shipped()));
}

Profile sound(const ProfileOrError& result) {
    const auto* profile = std::get_if<Profile>(&result);
    if (!profile) std::fprintf(stderr, "%s\n", error_of(result).c_str());
    REQUIRE(profile != nullptr);
    return *profile;
}

Profile h200() { return sound(find_profile("h200", shipped())); }

bool has(const std::string& text, std::string_view part) {
    if (text.find(part) != std::string::npos) return true;
    std::fprintf(stderr, "no \"%.*s\" in: %s\n", static_cast<int>(part.size()), part.data(),
                 text.c_str());
    return false;
}

std::string toml_error(std::string_view text) {
    const auto result = toml::parse(text);
    const auto* error = std::get_if<toml::Error>(&result);
    return error ? std::to_string(error->line) + ": " + error->message : "(no error)";
}

double toml_number(const std::string& word) {
    const auto result = toml::parse("x = " + word);
    const auto* document = std::get_if<toml::Document>(&result);
    REQUIRE(document != nullptr);
    REQUIRE(document->sections[0].entries[0].value.number() != nullptr);
    return *document->sections[0].entries[0].value.number();
}

TEST(toml_reads_what_profiles_use) {
    const auto result = toml::parse(
        "\xef\xbb\xbf# comment\r\n"
        "text = \"a \\\"b\\\" # not a comment\\\\\"  # comment\r\n"
        "yes = true\n\n"
        "[ section ]\n"
        "table = [ # comment\n"
        "  [1, 2.5],\n"
        "  [3, 4],  # trailing comma\n"
        "]\n"
        "empty = []\n"
        "no = false");
    const auto* document = std::get_if<toml::Document>(&result);
    REQUIRE(document != nullptr);
    REQUIRE(document->sections.size() == 2);
    CHECK_EQUAL(*document->find("")->find("text")->value.text(), "a \"b\" # not a comment\\");
    CHECK(std::get<bool>(document->find("")->find("yes")->value.data));
    const toml::Section* section = document->find("section");
    REQUIRE(section != nullptr);
    CHECK_EQUAL(section->line, 5);
    const auto* table = section->find("table")->value.array();
    REQUIRE(table && table->size() == 2);
    CHECK_EQUAL(*(*(*table)[0].array())[1].number(), 2.5);
    CHECK_EQUAL((*table)[1].line, 8);
    CHECK_EQUAL((*table)[1].source, "[3, 4]");
    CHECK(section->find("empty")->value.array()->empty());
    CHECK_EQUAL(section->find("no")->line, 11);
}

TEST(toml_reads_numbers_as_toml_defines_them) {
    CHECK_EQUAL(toml_number("150_754_820_096"), 150754820096.0);
    CHECK_EQUAL(toml_number("55.4e9"), 55.4e9);
    CHECK_EQUAL(toml_number("-1.5E-3"), -0.0015);
    CHECK_EQUAL(toml_number("+7"), 7);
    CHECK_EQUAL(toml_number("0"), 0);
    CHECK_EQUAL(toml_number("5e+22"), 5e22);
    for (const char* wrong : {"01", "1_", "_1", "1__0", ".5", "5.", "1e", "0x10", "inf", "nan",
                              "1.e5", "--1", "1-2", "2026-11-15", "1,5", "truely"}) {
        const std::string error = toml_error(std::string("x = ") + wrong);
        CHECK(has(error, "1: expected "));
    }
    CHECK(has(toml_error("x = 1e999"), "1: the number \"1e999\" is out of range"));
}

TEST(toml_errors_say_line_and_expectation) {
    CHECK_EQUAL(toml_error("a = 1\n\nb"),
                "3: expected = after the key \"b\", found the end of the line");
    CHECK(has(toml_error("a ="), "1: expected a number, a \"string\", true, false or an [array"));
    CHECK_EQUAL(toml_error("a = 1 2"),
                "1: expected the end of the line or a # comment, found \"2\"");
    CHECK_EQUAL(toml_error("a = 1\na = 2"), "2: key \"a\" is already on line 1");
    CHECK_EQUAL(toml_error("[s]\n[t]\n[s]"), "3: section [s] is already on line 1");
    CHECK(has(toml_error("\n[s\n"), "2: expected a section name"));
    CHECK(has(toml_error("[[s]]"), "1: [[arrays of tables]] are not supported"));
    CHECK(has(toml_error("a.b = 1"), "1: dotted keys are not supported"));
    CHECK(has(toml_error("\"a\" = 1"), "1: expected [section] or key = value"));
    CHECK(has(toml_error("a = 'b'"), "1: expected a number, a \"string\""));
    CHECK(has(toml_error("a = \"b\nc\""), "1: expected a closing \""));
    CHECK(has(toml_error("a = \"\\x\""), "1: expected \\\" \\\\ \\n or \\t after a backslash"));
    CHECK(has(toml_error("a = \"\"\"b\"\"\""), "1: strings over several lines"));
    CHECK(has(toml_error("b = 1\na = [1,\n\n"), "2: expected ] to close this array"));
    CHECK(has(toml_error("a = [1\n 2]"), "2: expected , or ] in the array"));
    CHECK(has(toml_error("a = [1,\n \"b\"]"), "2: expected a number or an array"));
    CHECK(has(toml_error(std::string_view("# a\0b", 5)), "1: control character"));
    CHECK(has(toml_error("a = " + std::string(100000, '[')), "1: arrays nest at most 8 deep"));
}

TEST(toml_survives_every_prefix_and_every_changed_byte_of_a_profile) {
    std::ifstream file(shipped() / "h200.toml", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    REQUIRE(text.size() > 1000);
    int sound_prefixes = 0;
    for (std::size_t length = 0; length < text.size(); length += 17) {
        const auto result = parse_profile(std::string_view(text).substr(0, length), "x", shipped());
        sound_prefixes += std::holds_alternative<Profile>(result);
    }
    CHECK(sound_prefixes > 0);
    for (std::size_t at = 0; at < text.size(); at += 41) {
        for (const char replacement : {'[', ']', '"', '\n', '\0', '\xff', '9', '='}) {
            std::string changed = text;
            changed[at] = replacement;
            const auto result = parse_profile(changed, "x", shipped());
            if (const auto* profile = std::get_if<Profile>(&result)) CHECK(!profile->validate());
        }
    }
}

TEST(every_shipped_profile_is_sound_and_named_as_its_file) {
    int count = 0;
    for (const auto& entry : fs::directory_iterator(shipped())) {
        const Profile profile = sound(load_profile(entry.path()));
        CHECK_EQUAL(profile.name, entry.path().stem().string());
        CHECK(!profile.validate());
        CHECK(has(profile.device_name, "(simulated)"));
        ++count;
    }
    CHECK_EQUAL(count, 7);
}

TEST(h200_has_the_measured_figures) {
    const Profile p = h200();
    CHECK_EQUAL(p.total_memory, 143771 * MiB);
    CHECK_EQUAL(p.granularity, 2 * MiB);
    CHECK_EQUAL(p.copy_engines, 3);
    CHECK_EQUAL(p.driver_version, 13000);
    CHECK_EQUAL(p.link.host_to_device_bytes_per_s, 55.4e9);
    CHECK_EQUAL(p.link.device_to_host_bytes_per_s, 55.3e9);
    CHECK_EQUAL(p.link.duplex_bytes_per_s, 50.1e9);
    CHECK_EQUAL(p.link.copy_latency_ns, 2500);
    CHECK_EQUAL(p.call_ns("cuMemAlloc", 64 * KiB, false), 8000);
    CHECK_EQUAL(p.call_ns("cuMemAlloc", 2 * MiB, false), 47000);
    CHECK_EQUAL(p.call_ns("cuMemFree", GiB, false), 640000);
    CHECK_EQUAL(p.call_ns("cuMemRelease", 256 * MiB, false), 163000);
    CHECK_EQUAL(p.call_ns("cuLaunchKernel", 0, false), 3950);
    CHECK_EQUAL(p.call_ns("cuMemHostAlloc", 16'000'000'000, false), 9.5e9);
}

TEST(measured_chunk_rates_follow_from_latency_and_rate) {
    const Profile p = h200();
    const std::pair<std::uint64_t, double> measured[] = {
        {64 * KiB, 17.3e9}, {MiB, 48.4e9}, {16 * MiB, 55.0e9}, {64 * MiB, 55.3e9}};
    for (const auto& [bytes, rate] : measured) {
        const auto size = static_cast<double>(bytes);
        const double seconds =
            p.link.copy_latency_ns * 1e-9 + size / p.link.host_to_device_bytes_per_s;
        CHECK(std::abs(size / seconds / rate - 1) < 0.03);
    }
}

TEST(costs_are_linear_between_points_flat_before_and_extrapolated_after) {
    const CallCost table{{{100, 10}, {200, 30}, {400, 40}}};
    CHECK_EQUAL(table.at(0), 10);
    CHECK_EQUAL(table.at(100), 10);
    CHECK_EQUAL(table.at(150), 20);
    CHECK_EQUAL(table.at(200), 30);
    CHECK_EQUAL(table.at(300), 35);
    CHECK_EQUAL(table.at(400), 40);
    CHECK_EQUAL(table.at(800), 60);
    const CallCost constant{{{0, 7}}};
    CHECK_EQUAL(constant.at(0), 7);
    CHECK_EQUAL(constant.at(~std::uint64_t{0}), 7);
}

TEST(busy_costs_apply_beside_a_kernel_and_fall_back_to_idle_ones) {
    const Profile p = h200();
    CHECK_EQUAL(p.call_ns("cuMemCreate", 2 * MiB, true), 19000);
    CHECK_EQUAL(p.call_ns("cuMemMap", 2 * MiB, true), 4000);
    CHECK_EQUAL(p.call_ns("cuMemSetAccess", 2 * MiB, true), 34000);
    CHECK_EQUAL(p.call_ns("cuMemUnmap", 2 * MiB, true), 22000);
    CHECK_EQUAL(p.call_ns("cuMemRelease", 2 * MiB, true), 17000);
    CHECK_EQUAL(p.call_ns("cuMemAlloc", MiB, true), p.call_ns("cuMemAlloc", MiB, false));
}

TEST(no_call_of_h200_is_cheaper_beside_a_kernel) {
    const Profile p = h200();
    for (const std::string_view name : Profile::known_calls()) {
        const auto check = [&](std::uint64_t bytes) {
            CHECK(p.call_ns(name, bytes, true) >= p.call_ns(name, bytes, false));
        };
        for (std::uint64_t bytes = 2 * MiB; bytes < GiB; bytes += 2 * MiB) check(bytes);
        for (std::uint64_t bytes = GiB; bytes <= 128 * GiB; bytes *= 2) check(bytes);
    }
}

TEST(an_index_stands_for_its_name_in_every_profile) {
    const Profile p = h200();
    const auto calls = Profile::known_calls();
    REQUIRE(!calls.empty());
    for (std::size_t i = 0; i < calls.size(); ++i) {
        const int index = Profile::call_index(calls[i]);
        CHECK_EQUAL(index, static_cast<int>(i));
        CHECK_EQUAL(p.call_ns(index, 3 * MiB, false), p.call_ns(calls[i], 3 * MiB, false));
    }
    CHECK_EQUAL(Profile::call_index("cuMemAlloc_v2"), -1);
    CHECK_EQUAL(Profile::call_index(""), -1);
    CHECK_EQUAL(p.call_ns(-1, GiB, true), p.default_call_ns);
    CHECK_EQUAL(p.call_ns(1 << 20, GiB, true), p.default_call_ns);
    CHECK_EQUAL(p.call_ns("cuCtxGetFlags", 0, false), p.default_call_ns);
}

TEST(an_extending_profile_overrides_only_what_it_names) {
    const Profile base = h200();
    const Profile p =
        sound(parse_profile("name = \"mine\"\nextends = \"h200\"\ncopy_engines = 1\n"
                            "[calls]\ncuMemFree = 5\n[calls_busy]\ncuMemFree = 9\n",
                            "x.toml", shipped()));
    CHECK_EQUAL(p.name, "mine");
    CHECK_EQUAL(p.copy_engines, 1);
    CHECK_EQUAL(p.multiprocessors, base.multiprocessors);
    CHECK_EQUAL(p.call_ns("cuMemFree", GiB, false), 5);
    CHECK_EQUAL(p.call_ns("cuMemFree", GiB, true), 9);
    CHECK_EQUAL(p.call_ns("cuMemAlloc", GiB, false), base.call_ns("cuMemAlloc", GiB, false));
    CHECK_EQUAL(p.default_call_ns, base.default_call_ns);
}

TEST(extends_looks_beside_the_file_then_in_the_directory_and_takes_paths) {
    const Folder folder;
    fs::create_directory(folder.path / "below");
    folder.write("mine.toml", "name = \"mine\"\nextends = \"h200\"\nmultiprocessors = 7\n");
    const fs::path second =
        folder.write("second.toml", "name = \"second\"\nextends = \"mine\"\ncopy_engines = 2\n");
    const fs::path third =
        folder.write("below/third.toml", "name = \"third\"\nextends = \"../second.toml\"\n");
    const Profile p = sound(load_profile(third, shipped()));
    CHECK_EQUAL(p.name, "third");
    CHECK_EQUAL(p.multiprocessors, 7);
    CHECK_EQUAL(p.copy_engines, 2);
    CHECK_EQUAL(sound(find_profile(second.string(), shipped())).multiprocessors, 7);
    CHECK(has(error_of(load_profile(second)), "extends = \"h200\": no such profile beside"));
}

TEST(a_circle_of_extends_is_an_error_that_shows_it) {
    const Folder folder;
    folder.write("a.toml", "name = \"a\"\nextends = \"b\"\n");
    folder.write("b.toml", "name = \"b\"\nextends = \"./a.toml\"\n");
    folder.write("self.toml", "name = \"self\"\nextends = \"self\"\n");
    const std::string error = error_of(find_profile("a", folder.path));
    CHECK(has(error, "a.toml:2: extends \"b\": "));
    CHECK(has(error, "extends goes in a circle: "));
    CHECK(has(error, "b.toml -> "));
    CHECK(has(error_of(find_profile("self", folder.path)), "extends goes in a circle: "));
}

TEST(an_error_in_the_extended_profile_names_both_files) {
    const Folder folder;
    folder.write("base.toml", "name = \"base\"\nextends = \"h200\"\ncopy_engines = 0\n");
    const fs::path path = folder.write("top.toml", "name = \"top\"\n\nextends = \"base\"\n");
    const std::string error = error_of(load_profile(path, shipped()));
    CHECK(has(error, "top.toml:3: extends \"base\": "));
    CHECK(has(error, "base.toml:3: copy_engines = 0: must be a whole number, at least 1"));
}

TEST(unknown_names_list_the_nearest_valid_ones) {
    const std::string start = "name = \"x\"\nextends = \"h200\"\n";
    CHECK(has(extending(start + "copy_engine = 1"),
              "x.toml:3: unknown key \"copy_engine\" before any [section]; nearest: "
              "\"copy_engines\""));
    CHECK(has(extending(start + "[lnk]"), "x.toml:3: unknown section [lnk]; nearest: \"link\""));
    CHECK(has(extending(start + "[link]\nduplex_bytes = 1"), "nearest: \"duplex_bytes_per_s\""));
    CHECK(has(extending(start + "[calls]\ncuMemAlocc = 1"), "nearest: \"cuMemAlloc\""));
    CHECK(has(extending(start + "[calls]\ncuMemAlloc_v2 = 1"), "\"cuMemAlloc\""));
    CHECK(
        has(extending(start + "[kernels]\nduplex_bytes_per_s = 1"), "that key belongs in [link]"));
    CHECK(has(extending(start + "[link]\ncopy_engines = 1"), "belongs before any [section]"));
    CHECK(has(extending(start + "[calls_busy]\ndefault = 1"), "that key belongs in [calls]"));
}

TEST(wrong_values_name_line_key_and_what_is_allowed) {
    const std::string start = "name = \"x\"\nextends = \"h200\"\n";
    for (const char* wrong : {"0", "-1", "-55.4e9"}) {
        CHECK_EQUAL(extending(start + "[link]\nduplex_bytes_per_s = " + wrong),
                    std::string("x.toml:4: [link] duplex_bytes_per_s = ") + wrong +
                        ": must be a number, greater than 0 and at most 1e+15");
    }
    CHECK(has(extending(start + "multiprocessors = 1.5"),
              "x.toml:3: multiprocessors = 1.5: must be a whole number"));
    CHECK(has(extending(start + "multiprocessors = \"many\""), "must be a whole number"));
    CHECK(has(extending(start + "l2_bytes = 1e300"), "at most 2147483647"));
    CHECK(has(extending(start + "device_name = 3"), "must be a \"string\""));
    CHECK(has(extending(start + "device_name = \"\""), "must be 1 to 200 printable"));
    CHECK(has(extending("extends = \"h200\"\nname = \"a,b\""), "x.toml:2: name = \"a,b\": must"));
    CHECK(has(extending("name = \"x\"\nextends = 3"), "x.toml:2: extends = 3: must be a"));
    CHECK(has(extending(start + "granularity = 3_000_000"), "must be a power of two"));
    CHECK(has(extending(start + "link_width = 12"), "must be 1, 2, 4, 8, 16 or 32"));
    CHECK(has(extending(start + "threads_per_multiprocessor = 100"), "a multiple of 32"));
    CHECK(has(extending(start + "[calls]\ndefault = [[0, 1], [1, 2]]"), "must be a number"));
}

TEST(wrong_cost_tables_are_refused) {
    const std::string start = "name = \"x\"\nextends = \"h200\"\n[calls]\ncuMemAlloc = ";
    CHECK(has(extending(start + "\"fast\""), "x.toml:4: [calls] cuMemAlloc = \"fast\": must be a"));
    CHECK(has(extending(start + "[]"), "must be a number of ns or a table"));
    CHECK(has(extending(start + "[[1, 2]]"), "must be a number of ns or a table"));
    CHECK(has(extending(start + "[1, 2]"), "must be a number of ns or a table"));
    CHECK(has(extending(start + "[[1, 2], [3, 4, 5]]"), "must be a number of ns or a table"));
    CHECK(has(extending(start + "[[1, 2], [[3], 4]]"), "must be a number of ns or a table"));
    CHECK(has(extending(start + "-1"), "a cost must be at least 0"));
    CHECK(has(extending(start + "[[0, 1], [0, 2]]"), "bytes must increase"));
    CHECK(has(extending(start + "[[0, 1], [1.5, 2]]"), "bytes must be a whole number"));
    CHECK(has(extending(start + "[[0, 1], [5, 9], [9, 3]]"), "must not fall between the last two"));
}

TEST(contradicting_rates_are_refused_also_where_one_is_inherited) {
    const std::string start = "name = \"x\"\nextends = \"h200\"\n[link]\n";
    CHECK_EQUAL(extending(start + "duplex_bytes_per_s = 60e9"),
                "x.toml:4: [link] duplex_bytes_per_s = 6e+10: must be at most "
                "host_to_device_bytes_per_s, 5.54e+10");
    const std::string error =
        extending(start + "host_to_device_bytes_per_s = 5e9\ndevice_to_host_bytes_per_s = 5e9");
    CHECK(has(error, "[link] duplex_bytes_per_s = 5.01e+10 (inherited from \"h200\"): must be"));
    CHECK(has(error, "give the key here as well"));
    CHECK(has(extending(start + "device_to_host_bytes_per_s = 10e9"),
              "pageable_device_to_host_bytes_per_s = 1.28e+10 (inherited"));
}

TEST(missing_keys_are_allowed_only_when_extending_and_a_name_never) {
    const std::string error = error_of(parse_profile("name = \"x\"\n[link]\n", "x.toml"));
    CHECK(has(error, "x.toml: missing: device_name, "));
    CHECK(has(error, "[link] duplex_bytes_per_s"));
    CHECK(has(error, "[calls] default"));
    CHECK(has(error, "extends = \"h200\""));
    CHECK(has(extending("extends = \"h200\""), "x.toml: missing: name; a name is not inherited"));
}

TEST(compute_rates_are_optional_and_known_together_or_not_at_all) {
    CHECK_EQUAL(h200().compute.matmul_flops_per_s, 612.5e12);
    CHECK_EQUAL(sound(find_profile("weight-streaming", shipped())).compute.matmul_flops_per_s, 0);
    const std::string start = "name = \"x\"\nextends = \"h200\"\n[compute]\n";
    CHECK(has(extending(start + "weights_bytes_per_s = 0"),
              "x.toml:4: [compute] weights_bytes_per_s = 0: must be given with the other two"));
    const Profile none =
        sound(parse_profile(start + "matmul_flops_per_s = 0\nattention_flops_per_s = 0\n"
                                    "weights_bytes_per_s = 0\n",
                            "x.toml", shipped()));
    CHECK_EQUAL(none.compute.attention_flops_per_s, 0);
    CHECK(has(extending(start + "matmul_flops_per_s = -1"), "at least 0 and at most 1e+18"));
    CHECK(has(extending("name = \"x\"\nextends = \"h200\"\nmatmul_flops_per_s = 1"),
              "that key belongs in [compute]"));

    // Without extends the section may be left out, but not a part of it.
    std::ifstream file(shipped() / "h200.toml", std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    const std::size_t begin = text.find("[compute]"), end = text.find("[calls]");
    REQUIRE(begin < end && end != std::string::npos);
    const std::string rest = text.substr(0, begin) + text.substr(end);
    CHECK_EQUAL(sound(parse_profile(rest, "x.toml")).compute.weights_bytes_per_s, 0);
    CHECK(has(error_of(parse_profile(rest + "\n[compute]\nmatmul_flops_per_s = 1e12\n", "x.toml")),
              "x.toml: [compute] attention_flops_per_s = 0 (not given): must be given"));
}

TEST(managed_memory_is_known_whole_or_not_at_all) {
    const double measured = h200().managed.fault_bytes_per_s();
    CHECK(measured > 10e9 && measured < 12e9);
    const Profile study = sound(find_profile("memory-sharing", shipped()));
    CHECK_EQUAL(3'145'728 * study.managed.fault_ns, 47.18592e9);
    const std::string start = "name = \"x\"\nextends = \"h200\"\n[managed]\n";
    CHECK(has(extending(start + "fault_ns = 0"), "[managed] fault_ns = 0: must be given with"));
    CHECK(has(extending(start + "fault_bytes = 5000"), "must be a power of two, at least 4096"));
    CHECK(has(extending(start + "prefetch_evicts = 2"), "at least 0 and at most 1"));
}

TEST(a_profile_that_is_not_there_lists_what_is) {
    const std::string error = error_of(find_profile("h20", shipped()));
    CHECK(has(error, "no profile \"h20\" in "));
    CHECK(has(error, "nearest: \"h200\""));
    CHECK(has(error, "pcie4-24gb"));
    CHECK(has(error_of(find_profile("", shipped())), "no profile \"\""));
    CHECK(has(error_of(find_profile("h200", "/nowhere")), "which has none"));
    CHECK(has(error_of(find_profile("/nowhere/x.toml", shipped())), "x.toml: no such file"));
    const Folder folder;
    CHECK(has(error_of(find_profile(folder.path.string(), shipped())), "is a directory"));
    CHECK(has(error_of(find_profile("/dev/zero", shipped())), "is larger than 1 MiB"));
    CHECK(
        has(extending("name = \"x\"\nextends = \"h20\""), "x.toml:2: extends = \"h20\": no prof"));
}

TEST(validate_finds_what_code_broke) {
    Profile p = h200();
    CHECK(!p.validate());
    p.link.memset_bytes_per_s = 0;
    REQUIRE(p.validate().has_value());
    CHECK(has(*p.validate(), "[link] memset_bytes_per_s = 0: must be a number, greater than 0"));
    p = h200();
    p.kernels.launch_latency_ns = std::numeric_limits<double>::quiet_NaN();
    CHECK(p.validate().has_value());
    p = h200();
    p.calls[0] = CallCost{{{5, 1}, {5, 2}}};
    CHECK(has(p.validate().value_or(""), "bytes must increase"));
    CHECK(Profile().validate().has_value());
}

TEST(study_profiles_hold_their_figures) {
    const Profile three = sound(find_profile("weight-streaming", shipped()));
    CHECK_EQUAL(100e6 / three.link.host_to_device_bytes_per_s, 0.020);
    const Profile four = sound(find_profile("memory-sharing", shipped()));
    CHECK_EQUAL(12e9 / four.link.host_to_device_bytes_per_s, 0.75);
    CHECK(four.total_memory > 12 * GiB && four.total_memory < 24 * GiB);
    const Profile base = h200();
    for (const char* name : {"allocator-study", "fragmentation-study", "pool-design"}) {
        const Profile p = sound(find_profile(name, shipped()));
        CHECK_EQUAL(p.link.host_to_device_bytes_per_s, base.link.host_to_device_bytes_per_s);
        CHECK_EQUAL(p.total_memory, base.total_memory);
    }
}

// A locale that writes 1.5 as 1,5 and 1000 as 1.000; no such locale need be installed.
struct CommaForPoint : std::numpunct<char> {
    char do_decimal_point() const override { return ','; }
    char do_thousands_sep() const override { return '.'; }
    std::string do_grouping() const override { return "\3"; }
};

TEST(numbers_do_not_depend_on_the_locale) {
    const std::locale before =
        std::locale::global(std::locale(std::locale::classic(), new CommaForPoint));
    const double rate = h200().link.host_to_device_bytes_per_s;
    const std::string error =
        extending("name = \"x\"\nextends = \"h200\"\n[link]\nduplex_bytes_per_s = 60.5e9");
    std::locale::global(before);
    CHECK_EQUAL(rate, 55.4e9);
    CHECK(has(error, "duplex_bytes_per_s = 6.05e+10: must be at most"));
}

}  // namespace
