// Opens, checks, makes and removes the file of a shared card.
#include "sim/card/card_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace vramkit::sim {
namespace {

constexpr int kMostAttempts = 10'000;  // each is lost to another process that has just left
constexpr unsigned kOthers = 077;

std::string folder_of_user() {
    const char* runtime = std::getenv("XDG_RUNTIME_DIR");
    std::string base = "/tmp";
    if (runtime != nullptr && runtime[0] == '/' && access(runtime, W_OK) == 0) {
        base = runtime;
    } else if (access("/dev/shm", W_OK) == 0) {
        base = "/dev/shm";
    }
    return base + "/vramkit-sim-" + std::to_string(geteuid());
}

std::string reason() { return std::strerror(errno); }

bool belongs_to_user_alone(const struct stat& found) {
    return found.st_uid == geteuid() && (found.st_mode & kOthers) == 0;
}

}  // namespace

std::unique_ptr<CardFile> CardFile::open(const std::string& name, std::string& error) {
    std::unique_ptr<CardFile> made(new CardFile());
    made->folder_ = folder_of_user();
    made->path_ = made->folder_ + "/card-" + name;
    for (int attempt = 0; attempt < kMostAttempts; ++attempt) {
        const Opened opened = made->try_open(error);
        if (opened == Opened::done) return made;
        if (opened == Opened::refused) {
            error = "card " + name + ": " + error;
            return nullptr;
        }
        if (made->file_ >= 0) close(made->file_);
        made->file_ = -1;
    }
    error = "card " + name + ": other processes remove " + made->path_ + " again and again";
    return nullptr;
}

CardFile::~CardFile() {
    if (shared_ != nullptr) munmap(shared_, sizeof(SharedCard));
    if (file_ >= 0) close(file_);
}

CardFile::Opened CardFile::try_open(std::string& error) {
    if (mkdir(folder_.c_str(), 0700) != 0 && errno != EEXIST) {
        error = "cannot make the folder " + folder_ + ": " + reason();
        return Opened::refused;
    }
    struct stat found{};
    if (lstat(folder_.c_str(), &found) != 0) return Opened::again;
    if (!S_ISDIR(found.st_mode) || !belongs_to_user_alone(found)) {
        error = folder_ + " is not a folder that only this user can use; remove it";
        return Opened::refused;
    }
    file_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (file_ < 0) {
        if (errno == ENOENT) return Opened::again;
        error = "cannot open " + path_ + ": " + reason();
        return Opened::refused;
    }
    lock();
    if (fstat(file_, &found) != 0 || found.st_nlink == 0) return Opened::again;
    if (!S_ISREG(found.st_mode) || !belongs_to_user_alone(found)) {
        error = path_ + " is not a file that only this user can use; remove it";
        return Opened::refused;
    }
    const auto size = static_cast<std::uint64_t>(found.st_size);
    return check_or_make(size, error) ? Opened::done : Opened::refused;
}

bool CardFile::check_or_make(std::uint64_t size, std::string& error) {
    if (size == 0) {
        // With its pages: a full file system is found out here, and not by a signal later.
        errno = posix_fallocate(file_, 0, sizeof(SharedCard));
        if (errno != 0) {
            error = "cannot make " + path_ + ": " + reason();
            remove();
            return false;
        }
    } else if (size != sizeof(SharedCard)) {
        error = path_ + " has " + std::to_string(size) + " bytes instead of " +
                std::to_string(sizeof(SharedCard)) +
                ": another version of vramkit uses it, or it is no card; remove it";
        return false;
    }
    void* mapped = mmap(nullptr, sizeof(SharedCard), PROT_READ | PROT_WRITE, MAP_SHARED, file_, 0);
    if (mapped == MAP_FAILED) {
        error = "cannot map " + path_ + ": " + reason();
        return false;
    }
    shared_ = static_cast<SharedCard*>(mapped);
    if (shared_->magic == 0) {
        // New, or left unfinished by a process that was killed. All bytes zero is the state of a
        // card without processes.
        std::memset(mapped, 0, sizeof(SharedCard));
        shared_->version = SharedCard::kVersion;
        shared_->bytes = sizeof(SharedCard);
        pthread_mutexattr_t attributes;
        pthread_mutexattr_init(&attributes);
        pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&shared_->mutex, &attributes);
        pthread_mutexattr_destroy(&attributes);
        std::atomic_thread_fence(std::memory_order_release);
        shared_->magic = SharedCard::kMagic;
    }
    if (shared_->magic != SharedCard::kMagic || shared_->version != SharedCard::kVersion ||
        shared_->bytes != sizeof(SharedCard)) {
        error = path_ + " is no card of this version of vramkit; remove it";
        return false;
    }
    return true;
}

void CardFile::lock() {
    while (flock(file_, LOCK_EX) != 0 && errno == EINTR) {
    }
}

void CardFile::unlock() { flock(file_, LOCK_UN); }

void CardFile::remove() {
    unlink(path_.c_str());
    rmdir(folder_.c_str());  // stays where it has other cards
}

}  // namespace vramkit::sim
