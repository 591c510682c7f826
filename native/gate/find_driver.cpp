#include "gate/find_driver.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <link.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>

#include "driver/usual_paths.h"
#include "gate/control.h"
#include "gate/library_cache.h"

namespace vramkit::gate {
namespace {

constexpr std::string_view kName = "libcuda.so.1";

std::string_view environment(const char* name) {
    const char* value = secure_getenv(name);
    return value != nullptr ? value : "";
}

// This library's own file.
struct Own {
    Own() {
        Dl_info info{};
        char real[PATH_MAX];
        if (dladdr(reinterpret_cast<void*>(&gateDriver), &info) != 0 &&
            realpath(info.dli_fname, real) != nullptr) {
            path = Path(real);
        }
        known = stat(path.c_str(), &file) == 0;
    }
    bool is(const char* other) const {
        struct stat status{};
        return known && stat(other, &status) == 0 && status.st_dev == file.st_dev &&
               status.st_ino == file.st_ino;
    }

    Path path;
    struct stat file{};
    bool known = false;
};

class Search {
  public:
    // Whether the search is over.
    bool try_path(std::string_view path) {
        const Path full(path);
        if (full.empty() || access(full.c_str(), R_OK) != 0 || own_.is(full.c_str())) return false;
        void* handle = dlopen(full.c_str(), RTLD_NOW | RTLD_LOCAL);
        if (handle == nullptr) {
            note(dlerror());
            return false;
        }
        if (dlsym(handle, "gateDriver") != nullptr) {  // the gate of another installation
            dlclose(handle);
            return false;
        }
        found_.handle = handle;
        found_.path = Path(path);
        return true;
    }

    bool try_folder(std::string_view folder) {
        Path path(folder);
        if (!folder.ends_with('/')) path.append("/");
        return try_path(path.append(kName).view());
    }

    const Own& own() const { return own_; }

    // The first reason stays: it is about the library that the program would have got.
    void note(const char* reason) {
        if (found_.reason.empty() && reason != nullptr) found_.reason = Path(reason);
    }

    Found& found() { return found_; }

  private:
    Own own_;
    Found found_;
};

// A file in memory for as long as this lives; empty where it cannot be read.
class Mapped {
  public:
    explicit Mapped(const char* path) {
        const int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file < 0) return;
        struct stat status{};
        if (fstat(file, &status) == 0 && status.st_size > 0) {
            void* start = mmap(nullptr, status.st_size, PROT_READ, MAP_PRIVATE, file, 0);
            if (start != MAP_FAILED) {
                bytes_ = {static_cast<const char*>(start),
                          static_cast<std::size_t>(status.st_size)};
            }
        }
        close(file);
    }
    ~Mapped() {
        if (!bytes_.empty()) munmap(const_cast<char*>(bytes_.data()), bytes_.size());
    }
    Mapped(const Mapped&) = delete;
    Mapped& operator=(const Mapped&) = delete;

    std::span<const char> bytes() const { return bytes_; }

  private:
    std::span<const char> bytes_;
};

bool search_cache(Search& search) {
    const Mapped cache("/etc/ld.so.cache");
    return each_cached(cache.bytes(), kName,
                       [&](std::string_view path) { return search.try_path(path); });
}

// The folders in which the linker looks for libraries of the program. LD_LIBRARY_PATH is among them
// as it was when the program started; the cache comes before the default folders.
bool search_folders(Search& search) {
    void* program = dlopen(nullptr, RTLD_LAZY);
    Dl_serinfo sizes{};
    if (program == nullptr || dlinfo(program, RTLD_DI_SERINFOSIZE, &sizes) != 0) {
        return search_cache(search);
    }
    auto* info = static_cast<Dl_serinfo*>(std::malloc(sizes.dls_size));
    if (info == nullptr) return search_cache(search);
    bool found = false;
    bool cached = false;
    if (dlinfo(program, RTLD_DI_SERINFOSIZE, info) == 0 &&
        dlinfo(program, RTLD_DI_SERINFO, info) == 0) {
        for (unsigned index = 0; index < info->dls_cnt && !found; ++index) {
            const Dl_serpath& folder = info->dls_serpath[index];
            if (!cached && (folder.dls_flags & LA_SER_DEFAULT) != 0) {
                cached = true;
                found = search_cache(search);
            }
            found = found || search.try_folder(folder.dls_name);
        }
    }
    std::free(info);
    return found || (!cached && search_cache(search));
}

bool search_everywhere(Search& search) {
    if (search_folders(search)) return true;
    for (const char* path : kUsualDriverPaths) {
        if (search.try_path(path)) return true;
    }
    search.note("libcuda.so.1: cannot open shared object file: No such file or directory");
    return false;
}

}  // namespace

Found find_driver() {
    Search search;
    const std::string_view chosen = environment("VRAMKIT_GATE_DRIVER");
    const std::string_view kind = environment("VRAMKIT_DRIVER");
    if (!chosen.empty()) {
        if (!search.try_path(chosen)) {
            search.note("VRAMKIT_GATE_DRIVER does not name a driver that can be opened");
        }
    } else if (kind == "sim" || kind.starts_with("sim:")) {
        std::string_view here = folder_of(search.own().path.view());  // .../gate/
        here.remove_suffix(here.empty() ? 0 : 1);
        Path path(folder_of(here));
        if (!search.try_path(path.append("sim/").append(kName).view())) {
            search.note("the simulated GPU is not installed beside the gate");
        }
    } else {
        search_everywhere(search);
    }
    return search.found();
}

}  // namespace vramkit::gate
