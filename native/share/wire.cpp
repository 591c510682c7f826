#include "share/wire.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

namespace vramkit::share::wire {
namespace {

constexpr int kMostDescriptors = 16;
constexpr int kLowestNumber = 512;  // out of the way of programs that expect the low ones
constexpr int kSendTimeoutSeconds = 2;

}  // namespace

bool Connection::open(const char* path) {
    close();
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (std::strlen(path) >= sizeof address.sun_path) return false;
    std::strcpy(address.sun_path, path);
    const int low = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (low < 0) return false;
    int made = fcntl(low, F_DUPFD_CLOEXEC, kLowestNumber);
    if (made < 0) {
        made = low;
    } else {
        ::close(low);
    }
    struct stat status{};
    ucred peer{};
    socklen_t size = sizeof peer;
    const timeval limit{kSendTimeoutSeconds, 0};
    setsockopt(made, SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof limit);
    if (fstat(made, &status) != 0 ||
        ::connect(made, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
        getsockopt(made, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
        (peer.uid != geteuid() && peer.uid != 0)) {
        ::close(made);
        return false;
    }
    const std::lock_guard guard(sending_);
    socket_ = made;
    inode_ = status.st_ino;
    return true;
}

void Connection::close() {
    {
        const std::lock_guard guard(sending_);
        if (is_still_ours()) ::close(socket_);
        socket_ = -1;
    }
    bytes_.clear();
    for (const int each : descriptors_) ::close(each);
    descriptors_.clear();
}

void Connection::forget() {
    if (is_still_ours()) ::close(socket_);
    socket_ = -1;
}

bool Connection::is_still_ours() const {
    struct stat status{};
    return socket_ >= 0 && fstat(socket_, &status) == 0 && S_ISSOCK(status.st_mode) &&
           status.st_ino == inode_;
}

bool Connection::send(std::uint16_t number, const void* fields, std::size_t bytes, bool may_wait) {
    std::unique_lock guard(sending_, std::defer_lock);
    if (may_wait) {
        guard.lock();
    } else if (!guard.try_lock()) {
        return false;
    }
    if (!is_still_ours()) return false;
    char frame[kLargestFrame];
    const Header header{static_cast<u32>(sizeof(Header) + bytes), number, 0};
    std::memcpy(frame, &header, sizeof header);
    std::memcpy(frame + sizeof header, fields, bytes);
    std::size_t sent = 0;
    while (sent < header.length) {
        const int flags = MSG_NOSIGNAL | (may_wait ? 0 : MSG_DONTWAIT);
        const ssize_t now = ::send(socket_, frame + sent, header.length - sent, flags);
        if (now < 0 && errno == EINTR) continue;
        if (now <= 0) {
            // Half a frame may have gone: nothing that follows could be understood.
            shutdown(socket_, SHUT_RDWR);
            return false;
        }
        sent += static_cast<std::size_t>(now);
    }
    return true;
}

bool Connection::receive(std::int64_t timeout_ns) {
    if (!is_still_ours()) return false;
    pollfd waiting{socket_, POLLIN, 0};
    const timespec limit{timeout_ns / 1'000'000'000, timeout_ns % 1'000'000'000};
    const int ready = ppoll(&waiting, 1, &limit, nullptr);
    if (ready <= 0) return ready == 0 || errno == EINTR;
    char data[16384];
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int) * kMostDescriptors)];
    iovec vector{data, sizeof data};
    msghdr message{};
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    const ssize_t got = recvmsg(socket_, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
    if (got < 0) return errno == EAGAIN || errno == EINTR;
    if (got == 0) return false;
    for (cmsghdr* each = CMSG_FIRSTHDR(&message); each != nullptr;
         each = CMSG_NXTHDR(&message, each)) {
        if (each->cmsg_level != SOL_SOCKET || each->cmsg_type != SCM_RIGHTS) continue;
        const std::size_t count = (each->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (std::size_t index = 0; index < count; ++index) {
            int descriptor = -1;
            std::memcpy(&descriptor, CMSG_DATA(each) + index * sizeof(int), sizeof descriptor);
            descriptors_.push_back(descriptor);
        }
    }
    // A descriptor that is missing would let the next one stand for it.
    if ((message.msg_flags & MSG_CTRUNC) != 0) return false;
    bytes_.insert(bytes_.end(), data, data + got);
    return true;
}

std::optional<Frame> Connection::next_frame() {
    Header header;
    if (bytes_.size() < sizeof header) return {};
    std::memcpy(&header, bytes_.data(), sizeof header);
    if (header.length < sizeof header || header.length > kLargestFrame) {
        close();
        return {};
    }
    if (bytes_.size() < header.length) return {};
    Frame frame{header.number, {bytes_.begin() + sizeof header, bytes_.begin() + header.length}};
    bytes_.erase(bytes_.begin(), bytes_.begin() + header.length);
    return frame;
}

int Connection::next_descriptor() {
    if (descriptors_.empty()) return -1;
    const int descriptor = descriptors_.front();
    descriptors_.pop_front();
    return descriptor;
}

}  // namespace vramkit::share::wire
