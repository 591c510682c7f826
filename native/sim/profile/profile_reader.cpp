// Reads profiles: TOML text, what it extends, where files are found.
#include <algorithm>
#include <exception>
#include <filesystem>
#include <fstream>
#include <new>
#include <numeric>
#include <system_error>
#include <utility>

#include "sim/profile/profile_fields.h"
#include "sim/profile/toml.h"

namespace vramkit::sim {
namespace {

namespace fs = std::filesystem;
using namespace fields;

constexpr std::string_view section_names[] = {"link",    "kernels", "compute",   "sharing",
                                              "managed", "calls",   "calls_busy"};
constexpr std::size_t largest_file = 1 << 20;

std::string joined(const std::vector<std::string>& words) {
    std::string result;
    for (const std::string& word : words) result += (result.empty() ? "" : ", ") + word;
    return result;
}

std::size_t edit_distance(std::string_view a, std::string_view b) {
    std::vector<std::size_t> row(b.size() + 1);
    std::iota(row.begin(), row.end(), std::size_t{0});
    for (std::size_t i = 0; i < a.size(); ++i) {
        std::size_t diagonal = row[0];
        row[0] = i + 1;
        for (std::size_t j = 0; j < b.size(); ++j) {
            const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
            diagonal = row[j + 1];
            row[j + 1] = std::min({replaced, row[j] + 1, diagonal + 1});
        }
    }
    return row.back();
}

// The three valid names closest to what was written.
std::string nearest(std::string_view given, std::span<const std::string_view> valid) {
    std::vector<std::pair<std::size_t, std::string>> ranked;
    for (const std::string_view name : valid) {
        ranked.emplace_back(edit_distance(given, name), in_quotes(name));
    }
    std::ranges::sort(ranked);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < std::min<std::size_t>(3, ranked.size()); ++i) {
        names.push_back(ranked[i].second);
    }
    return joined(names);
}

std::vector<std::string_view> keys_of(std::string_view section) {
    std::vector<std::string_view> keys;
    Profile blank;
    for_each_field(blank, [&](std::string_view in, std::string_view key, auto&, auto) {
        if (in == section) keys.push_back(key);
    });
    if (section.empty()) keys.push_back("extends");
    if (section.starts_with("calls")) {
        keys.insert(keys.end(), Profile::known_calls().begin(), Profile::known_calls().end());
    }
    return keys;
}

// Sets one member from a value of the file, after the checks: nothing is set when it complains.
template <class Member, class Rule>
Complaint assign(Member& member, const toml::Value& value, Rule rule) {
    if constexpr (is_text<Member>) {
        if (!value.text()) return "must be a \"string\"";
        if (Complaint complaint = complain(*value.text(), rule)) return complaint;
        member = *value.text();
    } else {
        constexpr bool whole = std::is_integral_v<Member>;
        if (!value.number()) return whole ? "must be a whole number" : "must be a number";
        if (Complaint complaint = complain(*value.number(), rule, whole)) return complaint;
        member = static_cast<Member>(*value.number());
    }
    return {};
}

// A number, or [[bytes, ns], ...] with at least two points.
Complaint assign_cost(CallCost& cost, const toml::Value& value) {
    constexpr auto form = "must be a number of ns or a table [[bytes, ns], [bytes, ns], ...]";
    CallCost read;
    if (value.number()) {
        read.points.push_back(CostPoint{0, *value.number()});
    } else if (value.array() && value.array()->size() >= 2) {
        for (const toml::Value& item : *value.array()) {
            const auto* pair = item.array();
            if (!pair || pair->size() != 2 || !(*pair)[0].number() || !(*pair)[1].number())
                return form;
            read.points.push_back(CostPoint{*(*pair)[0].number(), *(*pair)[1].number()});
        }
    } else {
        return form;
    }
    if (Complaint complaint = complain(read)) return complaint;
    cost = std::move(read);
    return {};
}

bool is_path(std::string_view name) {
    return name.find('/') != std::string_view::npos || name.ends_with(".toml");
}

// Names of the profiles in a directory, sorted.
std::vector<std::string> profiles_in(const fs::path& directory) {
    std::vector<std::string> names;
    std::error_code code;
    fs::directory_iterator at(directory, code);
    for (; !code && at != fs::directory_iterator(); at.increment(code)) {
        if (at->path().extension() == ".toml") names.push_back(at->path().stem().string());
    }
    std::ranges::sort(names);
    return names;
}

std::string no_such_profile(std::string_view name, const fs::path& directory) {
    const std::vector<std::string> names = profiles_in(directory);
    const std::vector<std::string_view> views(names.begin(), names.end());
    return "no profile " + in_quotes(name) + " in " + directory.string() +
           (names.empty() ? ", which has none"
                          : "; nearest: " + nearest(name, views) + "; all: " + joined(names)) +
           "; a path has a / or ends in .toml";
}

// The text of a file, or what is wrong with it.
std::optional<std::string> read_file(const fs::path& path, std::string& problem) {
    std::error_code code;
    if (!fs::exists(path, code)) {
        problem = "no such file";
    } else if (fs::is_directory(path, code)) {
        problem = "is a directory; expected a .toml file";
    } else {
        std::ifstream file(path, std::ios::binary);
        std::string text(largest_file + 1, '\0');
        file.read(text.data(), static_cast<std::streamsize>(text.size()));
        text.resize(static_cast<std::size_t>(file.gcount()));
        if (file.bad() || (file.fail() && !file.eof())) {
            problem = "cannot be read";
        } else if (text.size() > largest_file) {
            problem = "is larger than 1 MiB; expected a profile";
        } else {
            return text;
        }
    }
    return {};
}

// Where a profile is looked for, and the files that are being read (to see a circle of `extends`).
struct Search {
    std::optional<fs::path> beside;
    fs::path directory;
    std::vector<fs::path> chain;
};

ProfileOrError load(const fs::path& path, Search search);

// Reads one text: sets members in file order over what it extends.
class ProfileReader {
  public:
    ProfileReader(std::string_view origin, Search search)
        : origin_(origin), search_(std::move(search)) {}

    ProfileOrError read(std::string_view text) {
        auto parsed = toml::parse(text);
        if (const auto* error = std::get_if<toml::Error>(&parsed)) {
            return located(error->line, error->message);
        }
        document_ = std::move(std::get<toml::Document>(parsed));
        profile_.calls.resize(Profile::known_calls().size());
        profile_.calls_busy.resize(Profile::known_calls().size());
        if (Complaint error = inherit()) return *error;
        for (const toml::Section& section : document_.sections) {
            if (Complaint error = read_section(section)) return *error;
        }
        if (Complaint error = find_missing()) return *error;
        if (const auto problem = find_problem(profile_)) return located(*problem);
        return std::move(profile_);
    }

  private:
    std::string located(int line, const std::string& message) const {
        return origin_ + ":" + std::to_string(line) + ": " + message;
    }

    std::string located(const Problem& problem) const {
        const toml::Section* section = document_.find(problem.section);
        const toml::Entry* entry = section ? section->find(problem.key) : nullptr;
        const std::string what = full_key(problem.section, problem.key) + " = " + problem.value;
        if (entry) return located(entry->line, what + ": " + problem.complaint);
        if (extends_.empty()) return origin_ + ": " + what + " (not given): " + problem.complaint;
        return origin_ + ": " + what + " (inherited from " + in_quotes(extends_) +
               "): " + problem.complaint + "; give the key here as well";
    }

    std::string located(const toml::Section& section, const toml::Entry& entry,
                        const std::string& complaint) const {
        return located(entry.line, full_key(section.name, entry.key) + " = " + entry.value.source +
                                       ": " + complaint);
    }

    Complaint inherit() {
        const toml::Section& top = document_.sections.front();
        const toml::Entry* entry = top.find("extends");
        if (!entry) return {};
        if (!entry->value.text() || entry->value.text()->empty()) {
            return located(top, *entry, "must be a \"string\": the name or the path of a profile");
        }
        extends_ = *entry->value.text();
        std::optional<fs::path> found;
        if (is_path(extends_)) {
            found = search_.beside ? *search_.beside / extends_ : fs::path(extends_);
        } else {
            std::error_code code;
            const fs::path file = extends_ + ".toml";
            if (search_.beside && fs::exists(*search_.beside / file, code)) {
                found = *search_.beside / file;
            } else if (search_.directory.empty()) {
                return located(top, *entry,
                               "no such profile beside this one, and no other directory given");
            } else if (fs::exists(search_.directory / file, code)) {
                found = search_.directory / file;
            } else {
                return located(top, *entry, no_such_profile(extends_, search_.directory));
            }
        }
        ProfileOrError parent = load(*found, search_);
        if (const auto* error = std::get_if<std::string>(&parent)) {
            return located(entry->line, "extends " + in_quotes(extends_) + ": " + *error);
        }
        profile_ = std::move(std::get<Profile>(parent));
        return {};
    }

    Complaint read_section(const toml::Section& section) {
        if (!section.name.empty() &&
            std::ranges::find(section_names, section.name) == std::end(section_names)) {
            return located(section.line, "unknown section [" + section.name +
                                             "]; nearest: " + nearest(section.name, section_names));
        }
        for (const toml::Entry& entry : section.entries) {
            if (section.name.empty() && entry.key == "extends") continue;
            if (Complaint error = read_entry(section, entry)) return error;
        }
        return {};
    }

    Complaint read_entry(const toml::Section& section, const toml::Entry& entry) {
        bool known = false;
        Complaint complaint;
        for_each_field(profile_,
                       [&](std::string_view in, std::string_view key, auto& member, auto rule) {
                           if (known || in != section.name || key != entry.key) return;
                           known = true;
                           complaint = assign(member, entry.value, rule);
                       });
        const int call = section.name.starts_with("calls") ? Profile::call_index(entry.key) : -1;
        if (!known && call >= 0) {
            known = true;
            auto& costs = section.name == "calls" ? profile_.calls : profile_.calls_busy;
            complaint = assign_cost(costs[static_cast<std::size_t>(call)], entry.value);
        }
        if (!known) return unknown_key(section, entry);
        if (complaint) return located(section, entry, *complaint);
        return {};
    }

    Complaint unknown_key(const toml::Section& section, const toml::Entry& entry) const {
        const std::string place =
            section.name.empty() ? "before any [section]" : "in [" + section.name + "]";
        std::string message = "unknown key " + in_quotes(entry.key) + " " + place +
                              "; nearest: " + nearest(entry.key, keys_of(section.name));
        for (const std::string_view other :
             {"", "link", "kernels", "compute", "sharing", "managed", "calls"}) {
            const std::vector<std::string_view> keys = keys_of(other);
            if (other == section.name || std::ranges::find(keys, entry.key) == keys.end()) continue;
            message += other.empty() ? "; that key belongs before any [section]"
                                     : "; that key belongs in [" + std::string(other) + "]";
        }
        return located(entry.line, message);
    }

    // A name is never inherited: two profiles that report under one name could not be told apart.
    Complaint find_missing() const {
        std::vector<std::string> missing;
        Profile blank;
        for_each_field(blank, [&](std::string_view in, std::string_view key, auto&, auto) {
            const toml::Section* section = document_.find(in);
            if (optional_section(in) || (section && section->find(key))) return;
            if (extends_.empty() || key == "name") missing.push_back(full_key(in, key));
        });
        if (missing.empty()) return {};
        return origin_ + ": missing: " + joined(missing) +
               (extends_.empty()
                    ? "; give them, or take them from another profile with extends = \"h200\""
                    : "; a name is not inherited");
    }

    std::string origin_;
    Search search_;
    std::string extends_;
    toml::Document document_;
    Profile profile_;
};

ProfileOrError load(const fs::path& path, Search search) {
    std::error_code code;
    fs::path real = fs::weakly_canonical(path, code);
    if (code) real = path;
    const bool circle = std::ranges::find(search.chain, real) != search.chain.end();
    search.chain.push_back(real);
    if (circle) {
        std::string way;
        for (const fs::path& file : search.chain)
            way += (way.empty() ? "" : " -> ") + file.string();
        return "extends goes in a circle: " + way;
    }
    std::string problem;
    const std::optional<std::string> text = read_file(path, problem);
    if (!text) return "profile " + path.string() + ": " + problem;
    search.beside = path.parent_path();
    return ProfileReader(path.string(), std::move(search)).read(*text);
}

// Keeps the promise of profile.h that the readers never throw. The texts fit a string without an
// allocation.
template <class Make>
ProfileOrError guarded(Make make) {
    try {
        return make();
    } catch (const std::bad_alloc&) {
        return std::string("out of memory");
    } catch (...) {
        return std::string("internal error");
    }
}

}  // namespace

ProfileOrError load_profile(const fs::path& path, const fs::path& directory) {
    return guarded([&] { return load(path, Search{{}, directory, {}}); });
}

ProfileOrError parse_profile(std::string_view text, std::string_view origin,
                             const fs::path& directory) {
    return guarded([&] { return ProfileReader(origin, Search{{}, directory, {}}).read(text); });
}

ProfileOrError find_profile(std::string_view name_or_path, const fs::path& directory) {
    return guarded([&]() -> ProfileOrError {
        if (is_path(name_or_path)) return load(fs::path(name_or_path), Search{{}, directory, {}});
        const fs::path file = directory / (std::string(name_or_path) + ".toml");
        std::error_code code;
        if (name_or_path.empty() || !fs::exists(file, code)) {
            return no_such_profile(name_or_path, directory);
        }
        return load(file, Search{{}, directory, {}});
    });
}

}  // namespace vramkit::sim
