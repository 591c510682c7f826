// Stacks of Python programs come from the interpreter that is loaded in the process, if any,
// through its public C API; the simulator does not link to it.
#include "sim/checker/call_sites.h"

#include <dlfcn.h>
#include <execinfo.h>
#include <pthread.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <mutex>

namespace vramkit::sim {
namespace {

constexpr int kMostFrames = 12;

// The program itself is known by the name it was started with, which may be relative.
std::string absolute(const char* module) {
    std::error_code error;
    const auto path =
        std::filesystem::canonical(module[0] == '/' ? module : "/proc/self/exe", error);
    return error ? module : path.string();
}

std::string describe(void* address) {
    Dl_info info{};
    char text[64];
    if (dladdr(address, &info) == 0 || info.dli_fname == nullptr) {
        std::snprintf(text, sizeof text, "%p", address);
        return text;
    }
    std::string result;
    if (info.dli_sname != nullptr) {
        std::snprintf(text, sizeof text, "+0x%zx",
                      static_cast<char*>(address) - static_cast<char*>(info.dli_saddr));
        result = std::string(info.dli_sname) + text + " ";
    }
    std::snprintf(text, sizeof text, "+0x%zx",
                  static_cast<char*>(address) - static_cast<char*>(info.dli_fbase));
    return result + "(" + absolute(info.dli_fname) + text + ")";
}

// The few functions of Python's C API that walking a stack takes; all null without an interpreter.
struct Python {
    int (*is_initialized)() = nullptr;
    int (*is_finalizing)() = nullptr;
    int (*ensure)() = nullptr;
    void (*release)(int) = nullptr;
    void* (*this_thread)() = nullptr;
    void* (*thread_frame)(void*) = nullptr;
    void* (*frame_back)(void*) = nullptr;
    void* (*frame_code)(void*) = nullptr;
    int (*frame_line)(void*) = nullptr;
    void* (*attribute)(void*, const char*) = nullptr;
    const char* (*text)(void*) = nullptr;
    void (*release_object)(void*) = nullptr;
    void (*clear_error)() = nullptr;
    bool usable = false;

    Python() {
        usable =
            find(is_initialized, "Py_IsInitialized") && find(ensure, "PyGILState_Ensure") &&
            find(release, "PyGILState_Release") &&
            find(this_thread, "PyGILState_GetThisThreadState") &&
            find(thread_frame, "PyThreadState_GetFrame") && find(frame_back, "PyFrame_GetBack") &&
            find(frame_code, "PyFrame_GetCode") && find(frame_line, "PyFrame_GetLineNumber") &&
            find(attribute, "PyObject_GetAttrString") && find(text, "PyUnicode_AsUTF8") &&
            find(release_object, "Py_DecRef") && find(clear_error, "PyErr_Clear") &&
            (find(is_finalizing, "Py_IsFinalizing") || find(is_finalizing, "_Py_IsFinalizing"));
    }

    template <class Function>
    static bool find(Function& function, const char* name) {
        function = reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
        return function != nullptr;
    }

    // One attribute of a code object as text.
    std::string code_text(void* code, const char* name) const {
        void* object = attribute(code, name);
        if (object == nullptr) {
            clear_error();
            return "?";
        }
        const char* value = text(object);
        std::string result = value != nullptr ? value : "?";
        if (value == nullptr) clear_error();
        release_object(object);
        return result;
    }
};

const Python& interpreter() {
    static const Python python;
    return python;
}

std::string python_stack() {
    const Python& python = interpreter();
    // A thread that Python does not know has no Python stack, and must not be made known to it.
    if (!python.usable || python.is_initialized() == 0 || python.is_finalizing() != 0) return {};
    void* thread = python.this_thread();
    if (thread == nullptr) return {};
    const int state = python.ensure();
    std::string result;
    void* frame = python.thread_frame(thread);
    for (int depth = 0; frame != nullptr && depth < kMostFrames; ++depth) {
        void* code = python.frame_code(frame);
        if (!result.empty()) result += '\n';
        result += python.code_text(code, "co_filename") + ":" +
                  std::to_string(python.frame_line(frame)) + " in " +
                  python.code_text(code, "co_name");
        python.release_object(code);
        void* back = python.frame_back(frame);
        python.release_object(frame);
        frame = back;
    }
    if (frame != nullptr) python.release_object(frame);
    python.release(state);
    return result;
}

// The caller's own frames inside the simulator are left out by the library they lie in.
std::string native_stack() {
    std::array<void*, kMostFrames + 8> addresses;
    const int depth = backtrace(addresses.data(), static_cast<int>(addresses.size()));
    Dl_info own{};
    dladdr(reinterpret_cast<void*>(&describe), &own);
    std::string result;
    for (int i = 0; i < depth; ++i) {
        Dl_info info{};
        if (dladdr(addresses[i], &info) != 0 && info.dli_fbase == own.dli_fbase) continue;
        if (!result.empty()) result += '\n';
        result += describe(addresses[i]);
    }
    return result;
}

struct ThreadNames {
    std::mutex lock;
    std::vector<std::string> names;
};

ThreadNames& thread_names() {
    // Never destroyed: threads may ask for it while the process exits.
    static ThreadNames& names = *std::make_unique<ThreadNames>().release();
    return names;
}

}  // namespace

bool python_is_finalizing() {
    const Python& python = interpreter();
    return python.usable && python.is_finalizing() != 0;
}

std::string capture_stack(Stacks stacks) {
    switch (stacks) {
        case Stacks::python:
            return python_stack();
        case Stacks::native:
            return native_stack();
        case Stacks::off:
            break;
    }
    return {};
}

std::uint32_t CallSites::intern(void* address, std::string stack) {
    const auto [entry, added] = numbers_.try_emplace(Key(address, std::move(stack)),
                                                     static_cast<std::uint32_t>(sites_.size()));
    if (added) sites_.push_back(&entry->first);
    return entry->second;
}

const std::string& CallSites::location(std::uint32_t call_site) const {
    static const std::string unknown;
    if (call_site >= sites_.size()) return unknown;  // without the checker no call has a site
    void* const address = sites_[call_site]->first;
    const auto found = locations_.find(address);
    return found != locations_.end() ? found->second
                                     : locations_.emplace(address, describe(address)).first->second;
}

std::vector<std::string_view> CallSites::frames(std::uint32_t call_site) const {
    std::vector<std::string_view> result;
    if (call_site >= sites_.size()) return result;
    std::string_view rest = sites_[call_site]->second;
    while (!rest.empty()) {
        const std::size_t end = rest.find('\n');
        result.push_back(rest.substr(0, end));
        if (end == std::string_view::npos) break;
        rest.remove_prefix(end + 1);
    }
    return result;
}

std::uint32_t thread_label() {
    thread_local const std::uint32_t label = [] {
        char name[32] = "";
        pthread_getname_np(pthread_self(), name, sizeof name);
        ThreadNames& all = thread_names();
        const std::lock_guard guard(all.lock);
        const auto number = static_cast<std::uint32_t>(all.names.size());
        all.names.push_back("thread " + std::to_string(number + 1) + " (" + name + ")");
        return number;
    }();
    return label;
}

std::string thread_name(std::uint32_t label) {
    ThreadNames& all = thread_names();
    const std::lock_guard guard(all.lock);
    return label < all.names.size() ? all.names[label] : "?";
}

}  // namespace vramkit::sim
