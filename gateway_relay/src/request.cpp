#include "request.hpp"

#include <algorithm>
#include <charconv>
#include <cstdint>

#include "http.hpp"
#include "json_text.hpp"
#include "utf8.hpp"

namespace request {

namespace {

constexpr std::size_t kLongestHead = 16 * 1024;

bool is_token(char c) {
    constexpr std::string_view kMarks = "!#$%&'*+-.^_`|~";
    return (c >= '0' && c <= '9') || (c >= 'A' && c <= 'Z') || (c >= 'a' && c <= 'z') ||
           kMarks.find(c) != std::string_view::npos;
}

/// One line of a head, without its end. False where it is anything out of the ordinary.
bool read_header(std::string_view line, Head& head) {
    const std::size_t colon = line.find(':');
    if (colon == 0 || colon == std::string_view::npos) return false;
    const std::string_view name = line.substr(0, colon), value = http::stripped(line.substr(colon + 1), " \t");
    if (!std::all_of(name.begin(), name.end(), is_token)) return false;
    const auto is_control = [](char c) {
        const auto code = static_cast<unsigned char>(c);
        return (code < 0x20 && c != '\t') || code == 0x7f;
    };
    if (std::any_of(value.begin(), value.end(), is_control)) return false;
    head.headers.emplace_back(http::lower(name), value);
    return true;
}

/// Reads JSON from the front. Every `read_…` returns false where that is not what stands there.
class Reader {
   public:
    explicit Reader(std::string_view text) : text_(text) {}

    std::size_t at() const { return at_; }

    void skip_blanks() {
        while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
            ++at_;
    }

    /// `c` with blanks around it.
    bool read(char c) {
        skip_blanks();
        if (at_ == text_.size() || text_[at_] != c) return false;
        ++at_;
        skip_blanks();
        return true;
    }

    bool read_string(std::string_view& content, bool& is_escaped) {
        if (at_ == text_.size() || text_[at_] != '"') return false;
        const std::size_t begin = ++at_;
        is_escaped = false;
        while (true) {
            at_ += json_text::plain_length(text_.substr(at_));
            if (at_ == text_.size()) return false;
            if (text_[at_] == '"') {
                content = text_.substr(begin, at_ - begin);
                ++at_;
                return true;
            }
            is_escaped = true;
            if (text_[at_] != '\\' || !read_escape()) return false;
        }
    }

    /// Over a value, of which it is not said that it is valid.
    bool skip_value() {
        std::size_t depth = 0;
        do {
            skip_blanks();
            if (at_ == text_.size()) return false;
            const char c = text_[at_];
            if (c == '"') {
                std::string_view content;
                bool is_escaped;
                if (!read_string(content, is_escaped)) return false;
            } else if (c == '{' || c == '[') {
                ++depth;
                ++at_;
            } else if (c == '}' || c == ']') {
                if (depth == 0) return false;
                --depth;
                ++at_;
            } else if (c == ',' || c == ':') {
                if (depth == 0) return false;
                ++at_;
            } else {
                while (at_ < text_.size() && std::string_view(",:]}[{\" \n\r\t").find(text_[at_]) == std::string_view::npos) ++at_;
            }
        } while (depth > 0);
        return true;
    }

   private:
    bool read_escape() {
        if (at_ + 1 >= text_.size()) return false;
        const char c = text_[at_ + 1];
        if (c != 'u') {
            at_ += 2;
            return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
        }
        std::uint32_t code;
        if (!read_hex(code)) return false;
        if (code >= 0xdc00 && code < 0xe000) return false;
        if (code < 0xd800 || code >= 0xdc00) return true;
        // The first half of a pair.
        std::uint32_t second;
        if (at_ + 1 >= text_.size() || text_[at_] != '\\' || text_[at_ + 1] != 'u' || !read_hex(second)) return false;
        return second >= 0xdc00 && second < 0xe000;
    }

    /// `\uXXXX`.
    bool read_hex(std::uint32_t& code) {
        if (at_ + 6 > text_.size()) return false;
        const char* const begin = text_.data() + at_ + 2;
        const auto [end, error] = std::from_chars(begin, begin + 4, code, 16);
        at_ += 6;
        return error == std::errc() && end == begin + 4;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

bool read_message(Reader& reader, Message& message) {
    bool has_role = false, has_content = false;
    if (!reader.read('{')) return false;
    do {
        std::string_view name, text;
        bool is_escaped;
        if (!reader.read_string(name, is_escaped) || !reader.read(':') || !reader.read_string(text, is_escaped)) return false;
        if (name == "role" && !has_role) {
            has_role = true;
            if (text != "user" && text != "assistant" && text != "system") return false;
            message.role = text;
        } else if (name == "content" && !has_content) {
            has_content = true;
            message.content = text;
            message.is_escaped = is_escaped;
        } else {
            return false;
        }
    } while (reader.read(','));
    return has_role && has_content && reader.read('}');
}

}  // namespace

Verdict read_head(std::string_view data, std::string_view path, std::size_t longest, Head& head) {
    constexpr std::string_view kMethod = "POST ", kVersion = " HTTP/1.1\r\n";
    const std::size_t line = kMethod.size() + path.size() + kVersion.size();
    if (data.size() < line || !data.starts_with(kMethod) || data.substr(kMethod.size(), path.size()) != path ||
        data.substr(line - kVersion.size(), kVersion.size()) != kVersion)
        return Verdict::kOther;
    const std::size_t end = data.find("\r\n\r\n", line - 2);
    if (end == std::string_view::npos) return data.size() < kLongestHead ? Verdict::kMore : Verdict::kOther;
    std::string_view lines = data.substr(line, end + 2 > line ? end + 2 - line : 0);
    std::size_t length = 0;
    bool has_length = false;
    while (!lines.empty()) {
        const std::size_t next = lines.find("\r\n");
        if (!read_header(lines.substr(0, next), head)) return Verdict::kOther;
        lines.remove_prefix(next + 2);
        const auto& [name, value] = head.headers.back();
        if (name == "content-length") {
            const auto [stop, error] = std::from_chars(value.data(), value.data() + value.size(), length);
            if (has_length || error != std::errc() || stop != value.data() + value.size()) return Verdict::kOther;
            has_length = true;
        } else if (name == "connection" && http::lower(value) != "keep-alive") {
            return Verdict::kOther;
        } else if (name == "transfer-encoding" || name == "expect" || name == "upgrade") {
            return Verdict::kOther;
        }
    }
    const std::size_t whole = end + 4 + length;
    if (!has_length || length > longest || whole > longest || data.size() > whole) return Verdict::kOther;
    if (data.size() < whole) return Verdict::kMore;
    head.body = data.substr(end + 4);
    return Verdict::kFound;
}

bool read_chat(std::string_view body, Chat& chat) {
    Reader reader(body);
    if (!reader.read('{')) return false;
    while (true) {
        std::string_view name;
        bool is_escaped;
        if (!reader.read_string(name, is_escaped) || is_escaped || !reader.read(':')) return false;
        if (name == "messages") break;
        if (!reader.skip_value() || !reader.read(',')) return false;
    }
    chat.before = body.substr(0, reader.at());
    if (!reader.read('[')) return false;
    do {
        if (chat.messages.size() == kMostMessages || !read_message(reader, chat.messages.emplace_back())) return false;
    } while (reader.read(','));
    if (!reader.read(']')) return false;
    chat.after = body.substr(reader.at());
    return true;
}

std::string unescaped(std::string_view content) {
    std::string out;
    out.reserve(content.size());
    const auto hex = [&](std::size_t at) {
        std::uint32_t code = 0;
        std::from_chars(content.data() + at, content.data() + at + 4, code, 16);
        return code;
    };
    std::size_t at = 0;
    while (at < content.size()) {
        const std::size_t next = std::min(content.find('\\', at), content.size());
        out.append(content, at, next - at);
        if (next == content.size()) break;
        const char c = content[next + 1];
        at = next + 2;
        switch (c) {
            case 'b': out += '\b'; break;
            case 'f': out += '\f'; break;
            case 'n': out += '\n'; break;
            case 'r': out += '\r'; break;
            case 't': out += '\t'; break;
            case 'u': {
                std::uint32_t code = hex(at);
                at += 4;
                if (code >= 0xd800 && code < 0xdc00) {
                    code = 0x10000 + ((code - 0xd800) << 10) + (hex(at + 2) - 0xdc00);
                    at += 6;
                }
                utf8::put(code, out);
                break;
            }
            default: out += c;
        }
    }
    return out;
}

}  // namespace request
