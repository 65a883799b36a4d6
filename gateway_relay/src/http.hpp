// What the heads of requests and of responses have in common.

#pragma once

#include <string>
#include <string_view>

namespace http {

/// Letters of ASCII in lower case.
inline std::string lower(std::string_view text) {
    std::string out(text);
    for (char& c : out) {
        if (c >= 'A' && c <= 'Z') c = static_cast<char>(c + ('a' - 'A'));
    }
    return out;
}

/// Without `blanks` at both ends.
inline std::string_view stripped(std::string_view text, std::string_view blanks) {
    const std::size_t begin = text.find_first_not_of(blanks);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(blanks) + 1 - begin);
}

}  // namespace http
