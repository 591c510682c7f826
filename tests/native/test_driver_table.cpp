// The driver table: opening libraries, what they must have, and the names of errors.
#include "gpu.h"

namespace {

namespace fs = gpu::fs;
using vramkit::Driver;
using vramkit::OpenError;

std::string message_of(const Driver::Opened& opened) {
    const auto* error = std::get_if<OpenError>(&opened);
    return error != nullptr ? error->message : "(opened)";
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

void* exported(const char* name) { return gpu::driver().symbol(name); }

TEST(simulated_gpu_opens_and_says_what_it_is) {
    const auto driver = gpu::open();
    CHECK(driver->simulated());
    CHECK(fs::equivalent(driver->path(), VRAMKIT_SIM_PATH));
    CHECK(driver->symbol("simReset") != nullptr);
    CHECK(driver->symbol("simNoSuchControl") == nullptr);
}

TEST(every_required_call_is_in_the_table) {
    const vramkit::DriverTable& table = gpu::cu();
#define CHECK_required(symbol) \
    CHECK_EQUAL(reinterpret_cast<void*>(table.symbol), exported(#symbol));
#define CHECK_optional(symbol) CHECK_required(symbol)
#define CHECK_answered(symbol) CHECK(exported(#symbol) != nullptr);
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) CHECK_##need(symbol)
#include "driver/manifest.def"
#undef VRAMKIT_CALL
#undef CHECK_required
#undef CHECK_optional
#undef CHECK_answered
    int version = 0;
    CHECK_EQUAL(table.cuDriverGetVersion(&version), CUDA_SUCCESS);
    CHECK(version >= 12000);
}

TEST(every_variant_for_per_thread_streams_is_exported) {
#define CHECK_none(symbol)
#define CHECK_ptsz(symbol) CHECK(exported(#symbol "_ptsz") != nullptr);
#define CHECK_ptds(symbol) CHECK(exported(#symbol "_ptds") != nullptr);
#define VRAMKIT_CALL(base, symbol, since, need, suffix, params) CHECK_##suffix(symbol)
#include "driver/manifest.def"
#undef VRAMKIT_CALL
#undef CHECK_none
#undef CHECK_ptsz
#undef CHECK_ptds
}

TEST(missing_file_is_named) {
    const std::string message = message_of(Driver::open_path("/nowhere/libcuda.so.1"));
    CHECK(contains(message, "cannot open /nowhere/libcuda.so.1"));
}

TEST(file_that_is_no_library_is_named) {
    const gpu::Folder folder;
    const fs::path file = folder.path / "libcuda.so.1";
    std::ofstream(file) << "not a library";
    CHECK(contains(message_of(Driver::open_path(file.string())), "cannot open " + file.string()));
}

TEST(library_without_the_calls_says_which_are_missing) {
    const std::string message = message_of(Driver::open_path("libm.so.6"));
    CHECK(contains(message, "lacks driver calls that vramkit needs"));
    CHECK(contains(message, "cuInit"));
    CHECK(contains(message, "cuMemAlloc_v2"));
    // Ours to answer, not ours to call.
    CHECK(!contains(message, "cuEventElapsedTime_v2"));
}

TEST(two_drivers_open_at_once_share_nothing) {
    const gpu::Folder folder;
    const fs::path copy = folder.path / "libcuda.so.1";
    const fs::path original(VRAMKIT_SIM_PATH);
    fs::copy_file(original, copy);
    fs::create_directory_symlink(fs::canonical(original.parent_path() / "profiles"),
                                 folder.path / "profiles");
    const auto first = gpu::open();
    const auto second = gpu::open(copy.string());
    CHECK(second->simulated());
    CHECK(first->path() != second->path());
    REQUIRE(first->call().cuInit != second->call().cuInit);

    char error[200];
    const gpu::Controls one(*first), two(*second);
    REQUIRE(one.reset("devices=1", error, sizeof error) == 0);
    REQUIRE(two.reset("devices=3", error, sizeof error) == 0);
    int count = 0;
    CHECK_EQUAL(first->call().cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(second->call().cuDeviceGetCount(&count), CUDA_ERROR_NOT_INITIALIZED);
    CHECK_EQUAL(second->call().cuInit(0), CUDA_SUCCESS);
    CHECK_EQUAL(second->call().cuDeviceGetCount(&count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 3);
    CHECK_EQUAL(first->call().cuDeviceGetCount(&count), CUDA_SUCCESS);
    CHECK_EQUAL(count, 1);
    two.advance(5000);
    CHECK(two.now() >= 5000);
    CHECK(one.now() < 5000);
}

TEST(a_simulated_library_is_never_taken_for_the_real_driver) {
    const auto simulated = gpu::open();  // takes the name libcuda.so.1 in this process
    const auto opened = Driver::open_cuda();
    if (const auto* error = std::get_if<OpenError>(&opened)) {
        CHECK(contains(error->message, "no NVIDIA driver"));
    } else {
        CHECK(!std::get<std::shared_ptr<Driver>>(opened)->simulated());
    }
    CHECK(simulated->simulated());
}

TEST(error_names_and_meanings) {
    CHECK_EQUAL(vramkit::error_name(CUDA_SUCCESS), "CUDA_SUCCESS");
    CHECK_EQUAL(vramkit::error_name(CUDA_ERROR_OUT_OF_MEMORY), "CUDA_ERROR_OUT_OF_MEMORY");
    CHECK(contains(std::string(vramkit::error_meaning(CUDA_ERROR_OUT_OF_MEMORY)), "memory"));
    CHECK_EQUAL(vramkit::error_name(static_cast<CUresult>(1001)), "CUDA_ERROR_1001");
    CHECK(contains(std::string(vramkit::error_meaning(static_cast<CUresult>(1001))), "not know"));
}

TEST(the_simulated_gpu_names_errors_as_the_table_does) {
    int known = 0;
    for (int code = 0; code < 1000; ++code) {
        const char* name = nullptr;
        const auto result = static_cast<CUresult>(code);
        if (gpu::cu().cuGetErrorName(result, &name) != CUDA_SUCCESS) continue;
        ++known;
        CHECK_EQUAL(vramkit::error_name(result), std::string(name));
    }
    CHECK(known > 50);
}

}  // namespace
