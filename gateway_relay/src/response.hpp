// Triton's HTTP/1.1 responses: bytes in, events out, for every cut of the bytes. The same as the gateway's
// `gateway.triton.response_parser`, which says what is understood and why; a test holds the two together.

#pragma once

#include <cstdint>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace response {

class ProtocolError : public std::runtime_error {
   public:
    using std::runtime_error::runtime_error;
};

/// In bytes.
struct Limits {
    std::size_t event;
    std::size_t head;
};

class Parser {
   public:
    explicit Parser(Limits limits) : limits_(limits) {}

    /// Throws `ProtocolError`; the connection is then of no use.
    void feed(std::string_view data);

    /// The peer closed the connection. Throws `ProtocolError` unless that ends the response.
    void eof();

    int status = 0;
    bool done = false;
    bool reusable = false;
    std::string error_body;
    std::vector<std::string> events;

    bool is_between_chunks() const {
        return chunked_ && raw_.empty() && left_ == 0 && line_.empty() && !in_trailer_;
    }

   private:
    bool parse_head(std::string_view& data);
    void parse_plain(std::string_view data);
    void parse_chunks(std::string_view data);
    void start_chunk(std::string_view line);
    void take_body(std::string_view data);

    Limits limits_;
    std::string raw_;   // Not yet decoded: the head, or chunked coding.
    std::string line_;  // Decoded: the tail of a line that is not complete.
    bool chunked_ = false;
    std::optional<std::uint64_t> left_ = 0;  // Of this chunk or body; none: until the connection closes.
    bool in_trailer_ = false;
};

}  // namespace response
