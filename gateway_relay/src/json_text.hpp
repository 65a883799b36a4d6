// Strings of JSON, as far as more than one part writes or reads them.

#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

namespace json_text {

/// How many bytes at the beginning stand for themselves in a string. Eight at a time: this is most of a request.
inline std::size_t plain_length(std::string_view text) {
    constexpr std::uint64_t kOnes = 0x0101010101010101, kHighs = 0x8080808080808080;
    const auto has_zero = [](std::uint64_t bytes) { return (bytes - kOnes) & ~bytes & kHighs; };
    std::size_t at = 0;
    while (at + 8 <= text.size()) {
        std::uint64_t bytes;
        std::memcpy(&bytes, text.data() + at, 8);
        const std::uint64_t controls = (bytes - kOnes * 0x20) & ~bytes & kHighs;
        if (controls | has_zero(bytes ^ kOnes * '"') | has_zero(bytes ^ kOnes * '\\')) break;
        at += 8;
    }
    while (at < text.size() && static_cast<unsigned char>(text[at]) >= 0x20 && text[at] != '"' && text[at] != '\\') ++at;
    return at;
}

/// Appends the shortest escape of a character that JSON demands one for: a control character, a quote or a backslash.
inline void put_escape(char c, std::string& out) {
    constexpr std::string_view kHex = "0123456789abcdef";
    out += '\\';
    switch (c) {
        case '\b': out += 'b'; return;
        case '\f': out += 'f'; return;
        case '\n': out += 'n'; return;
        case '\r': out += 'r'; return;
        case '\t': out += 't'; return;
        case '"':
        case '\\': out += c; return;
        default:
            out += "u00";
            out += kHex[static_cast<unsigned char>(c) >> 4];
            out += kHex[static_cast<unsigned char>(c) & 15];
    }
}

/// The string that means `text`, which is UTF-8, as Python's orjson writes it.
inline std::string quoted(std::string_view text) {
    std::string out;
    // Most prompts have a line break in some hundred bytes.
    out.reserve(text.size() + text.size() / 64 + 16);
    out += '"';
    while (true) {
        const std::size_t plain = plain_length(text);
        out.append(text, 0, plain);
        if (plain == text.size()) break;
        put_escape(text[plain], out);
        text.remove_prefix(plain + 1);
    }
    out += '"';
    return out;
}

}  // namespace json_text
