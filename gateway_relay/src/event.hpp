// One chunk of Triton's generate stream, turned into the events of the client's stream. Pure: bytes in, bytes out. What is
// not understood completely is not touched: whoever knows all of Triton's answers, the gateway's Python, decides on it.

#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace relay {

/// What stands around the text of an event of the client's, which is a JSON string.
struct Frame {
    std::string prefix;
    std::string suffix;
};

/// What a read adds to an answer, in tokens. `prompt` is 0 where the engine does not say it.
struct Counts {
    std::int64_t answer = 0;
    std::int64_t prompt = 0;
};

/// Appends the client's events for a chunk's `body` to `out`, and adds to `counts`. False where the body is anything but
/// events of text in the middle of an answer; `out`, `counts` and `reason` are then of no use.
///
/// With a `reason`, which is empty so far, the last event may be an answer's last: then it says why the answer ended, if
/// that was `stop` or `length` and nothing is to be said of it.
bool translate(
    std::string_view body, const Frame& frame, std::string& out, Counts& counts, std::string* reason = nullptr);

/// A chunk of HTTP/1.1 at the beginning of `bytes`.
struct Chunk {
    enum class State { kWhole, kPartial, kStrange };
    State state;
    /// Of a whole one; `size` is with its size line and its end.
    std::string_view body = {};
    std::size_t size = 0;
};

/// The longest body that is waited for; in the middle of an answer it is some hundred bytes.
constexpr std::size_t kLongestBody = 64 * 1024;

/// `kStrange` is whatever is not `HEX CRLF body CRLF` with a body of 1 to `kLongestBody` bytes: also the last chunk.
Chunk chunk_at(std::string_view bytes);

}  // namespace relay
