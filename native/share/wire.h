// The messages between this library and the daemon, as frames on a socket. protocol.def has them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace vramkit::share::wire {

using u8 = std::uint8_t;
using u32 = std::uint32_t;
using i32 = std::int32_t;
using u64 = std::uint64_t;

// The names in bounds.
#define VRAMKIT_CONSTANT(name, value) inline constexpr u64 k##name = value;
#include "share/protocol.def"

// Fields may lie at any address: who needs a reference to one takes a copy, as
// std::uint64_t{field}.
#pragma pack(push, 1)
struct Header {
    u32 length = 0;
    std::uint16_t number = 0;
    std::uint16_t flags = 0;
};

#define VRAMKIT_MESSAGE(name, number, sender) \
    struct name##_message {                   \
        static constexpr std::uint16_t kNumber = number;
#define VRAMKIT_FIELD(message, type, name, least, most) type name = {};
#define VRAMKIT_BYTES(message, name, count) u8 name[count] = {};
#define VRAMKIT_TEXT(message, name, count) char name[count] = {};
#define VRAMKIT_END(message) \
    }                        \
    ;
#include "share/protocol.def"
#pragma pack(pop)

template <class Number, class Least, class Most>
constexpr bool is_within(Number value, Least least, Most most) {
    return !std::cmp_less(value, least) && !std::cmp_greater(value, most);
}

// Names of protocol.def in its bounds.
inline constexpr u64 MostBytes = kMostBytes, MostCount = kMostCount;

// Whether all fields are within their bounds.
#define VRAMKIT_MESSAGE(name, number, sender)                              \
    inline bool is_valid([[maybe_unused]] const name##_message& message) { \
        return true
#define VRAMKIT_FIELD(of, type, name, least, most) \
    &&is_within(static_cast<type>(message.name), least, most)
#define VRAMKIT_END(message) \
    ;                        \
    }
#include "share/protocol.def"

template <std::size_t size>
void put_text(char (&field)[size], std::string_view text) {
    std::memcpy(field, text.data(), text.size() < size ? text.size() : size);
}

// A frame as it came: its number and its fields.
struct Frame {
    std::uint16_t number = 0;
    std::vector<char> fields;

    // The message, where it is this one, has its length, and says nothing that may not be said.
    template <class Message>
    std::optional<Message> as() const {
        // A message without fields has an empty structure, whose size is not 0.
        constexpr std::size_t size = std::is_empty_v<Message> ? 0 : sizeof(Message);
        if (number != Message::kNumber || fields.size() != size) return {};
        Message message;
        if (size > 0) std::memcpy(&message, fields.data(), size);
        if (!is_valid(message)) return {};
        return message;
    }
};

// A connection: frames out and in, with the descriptors that came. Any thread may send; one opens,
// receives and closes.
class Connection {
  public:
    Connection() = default;
    ~Connection() { close(); }
    Connection(const Connection&) = delete;
    Connection& operator=(const Connection&) = delete;

    // False: there is no daemon, or one of another user.
    bool open(const char* path);
    void close();
    // In a forked child, which has no other thread: the connection is the parent's.
    void forget();

    template <class Message>
    bool send(const Message& message) {
        return send(Message::kNumber, &message, std::is_empty_v<Message> ? 0 : sizeof message,
                    true);
    }
    // False also if that would have to wait, for another thread or for the daemon to read.
    template <class Message>
    bool send_at_once(const Message& message) {
        return send(Message::kNumber, &message, std::is_empty_v<Message> ? 0 : sizeof message,
                    false);
    }
    // Waits until something comes or the time is over, and takes what came. False: the connection
    // is lost.
    bool receive(std::int64_t timeout_ns);
    std::optional<Frame> next_frame();
    // -1: none came.
    int next_descriptor();

  private:
    bool send(std::uint16_t number, const void* fields, std::size_t bytes, bool may_wait);
    // Programs that close all descriptors may close ours, and open files of their own by its
    // number.
    bool is_still_ours() const;

    std::mutex sending_;  // with it the socket is used by others than its own thread, and closed
    int socket_ = -1;
    std::uint64_t inode_ = 0;
    std::vector<char> bytes_;
    std::deque<int> descriptors_;
};

}  // namespace vramkit::share::wire
