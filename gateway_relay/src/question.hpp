// What Triton is asked in requests of one form: they differ in the answer's name and the prompt alone. The other half of
// `Telling`. Pure: bytes in, bytes out.

#pragma once

#include <string>
#include <string_view>

#include "json_text.hpp"

namespace relay {

struct Question {
    /// Of the body, around these two, which are JSON strings.
    std::string begin, middle, end;

    /// A request of HTTP/1.1. `head` are its first lines, `headers` those behind the length; each line has its end.
    [[nodiscard]] std::string request(
        std::string_view head, std::string_view headers, std::string_view id, std::string_view prompt) const {
        const std::string name = json_text::quoted(id), text = json_text::quoted(prompt);
        const std::size_t size = begin.size() + name.size() + middle.size() + text.size() + end.size();
        const std::string length = "Content-Length: " + std::to_string(size) + "\r\n";
        std::string out;
        out.reserve(head.size() + length.size() + headers.size() + 2 + size);
        out.append(head).append(length).append(headers).append("\r\n");
        return out.append(begin).append(name).append(middle).append(text).append(end);
    }
};

}  // namespace relay
