// A chat request as nearly all are, read from the bytes of the client's socket: a plain head, and messages that are text and
// nothing else. Pure: bytes in, views of them out. Whatever else it is, and whatever is wrong with it, is `kOther`: the
// gateway's Python knows all requests, and what to say of a mistake.

#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace request {

enum class Verdict {
    kOther,
    /// It may be one, but is not complete.
    kMore,
    kFound,
};

/// `content` is the text between the quotes as it stands in JSON: valid, but for its UTF-8; `is_escaped`: with escapes.
struct Message {
    std::string_view role;
    std::string_view content;
    bool is_escaped;
};

/// A body. `before` and `after` are what stands around the array of the messages: the same bytes mean the same in every
/// body that is valid JSON, and whoever knows them knows all that is asked for but the messages. `after` was not read.
struct Chat {
    std::string_view before;
    std::vector<Message> messages;
    std::string_view after;
};

struct Head {
    std::vector<std::pair<std::string, std::string_view>> headers;  ///< Names in lower case, in their order.
    std::string_view body;
};

/// The request at the beginning of `data`, if it is `POST path` and all that there is. `longest` is in bytes, of head and
/// body together.
Verdict read_head(std::string_view data, std::string_view path, std::size_t longest, Head& head);

/// False for any body but one of 1 to `kMostMessages` messages, each with a role and a content that is a string.
bool read_chat(std::string_view body, Chat& chat);

constexpr std::size_t kMostMessages = 1000;

/// The text that a string of valid JSON means, as UTF-8.
std::string unescaped(std::string_view content);

}  // namespace request
