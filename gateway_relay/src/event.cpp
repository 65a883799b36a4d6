#include "event.hpp"

#include <array>
#include <charconv>

#include "json_text.hpp"
#include "utf8.hpp"

namespace relay {

namespace {

/// The value of a hexadecimal digit, or -1.
int hex_value(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

/// Appends a character as the client's JSON writes it: UTF-8, with the shortest escapes that JSON demands.
void put_character(std::uint32_t code, std::string& out) {
    if (code < 0x20 || code == '"' || code == '\\') {
        json_text::put_escape(static_cast<char>(code), out);
    } else {
        utf8::put(code, out);
    }
}

/// The length of the valid UTF-8 sequence of more than one byte at the beginning of `bytes`; 0 for anything else.
std::size_t sequence_length(std::string_view bytes) {
    const auto byte = [&](std::size_t at) { return static_cast<unsigned char>(bytes[at]); };
    const auto continues = [&](std::size_t at) { return at < bytes.size() && (byte(at) & 0xc0) == 0x80; };
    const unsigned first = byte(0);
    if (first >= 0xc2 && first <= 0xdf) return continues(1) ? 2 : 0;
    if (!continues(1)) return 0;
    const unsigned second = byte(1);
    if (first >= 0xe0 && first <= 0xef) {
        // Neither what fits into less nor half of a surrogate pair.
        if ((first == 0xe0 && second < 0xa0) || (first == 0xed && second > 0x9f)) return 0;
        return continues(2) ? 3 : 0;
    }
    if (first >= 0xf0 && first <= 0xf4) {
        if ((first == 0xf0 && second < 0x90) || (first == 0xf4 && second > 0x8f)) return 0;
        return continues(2) && continues(3) ? 4 : 0;
    }
    return 0;
}

/// Reads JSON from the front; each method says whether it found what it is named for, and has passed it then.
class Reader {
  public:
    explicit Reader(std::string_view bytes) : left_(bytes) {}

    std::string_view left() const { return left_; }

    bool literal(std::string_view text) {
        if (left_.substr(0, text.size()) != text) return false;
        left_.remove_prefix(text.size());
        return true;
    }

    void spaces() {
        while (!left_.empty() && left_.front() == ' ') left_.remove_prefix(1);
    }

    /// A name without escapes.
    bool name(std::string_view& found) {
        if (!literal("\"")) return false;
        const std::size_t end = left_.find('"');
        if (end == std::string_view::npos) return false;
        found = left_.substr(0, end);
        for (const char c : found) {
            if (c < 0x20 || c > 0x7e || c == '\\') return false;
        }
        left_.remove_prefix(end + 1);
        return true;
    }

    /// A string, appended to `out` in the client's form, quotes included.
    bool text(std::string& out) {
        if (!literal("\"")) return false;
        out += '"';
        while (true) {
            // What stands as it is, all at once.
            std::size_t plain = 0;
            while (plain < left_.size()) {
                const auto c = static_cast<unsigned char>(left_[plain]);
                if (c < 0x20 || c == '"' || c == '\\') break;
                if (c < 0x80) {
                    ++plain;
                    continue;
                }
                const std::size_t length = sequence_length(left_.substr(plain));
                if (length == 0) return false;
                plain += length;
            }
            out.append(left_.substr(0, plain));
            left_.remove_prefix(plain);
            if (literal("\"")) {
                out += '"';
                return true;
            }
            if (!literal("\\") || !escape(out)) return false;
        }
    }

    /// An integer that is not negative, of up to nine digits.
    bool count(std::int64_t& found) {
        std::size_t digits = 0;
        while (digits < left_.size() && left_[digits] >= '0' && left_[digits] <= '9') ++digits;
        if (digits == 0 || digits > 9 || (digits > 1 && left_[0] == '0')) return false;
        std::from_chars(left_.data(), left_.data() + digits, found);
        left_.remove_prefix(digits);
        return true;
    }

  private:
    /// What follows a backslash.
    bool escape(std::string& out) {
        if (left_.empty()) return false;
        const char kind = left_.front();
        left_.remove_prefix(1);
        switch (kind) {
            case '"':
            case '\\':
            case '/': put_character(static_cast<unsigned char>(kind), out); return true;
            case 'b': put_character('\b', out); return true;
            case 'f': put_character('\f', out); return true;
            case 'n': put_character('\n', out); return true;
            case 'r': put_character('\r', out); return true;
            case 't': put_character('\t', out); return true;
            case 'u': break;
            default: return false;
        }
        std::uint32_t code = 0;
        if (!unit(code)) return false;
        if (code >= 0xd800 && code <= 0xdfff) {
            std::uint32_t low = 0;
            if (code > 0xdbff || !literal("\\u") || !unit(low) || low < 0xdc00 || low > 0xdfff) return false;
            code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        put_character(code, out);
        return true;
    }

    /// Four hexadecimal digits.
    bool unit(std::uint32_t& code) {
        if (left_.size() < 4) return false;
        code = 0;
        for (int i = 0; i < 4; ++i) {
            const int value = hex_value(left_[i]);
            if (value < 0) return false;
            code = code << 4 | static_cast<std::uint32_t>(value);
        }
        left_.remove_prefix(4);
        return true;
    }

    std::string_view left_;
};

/// A response of Triton: an object of scalars. Which of them are of interest is `gateway.triton.contract`'s
/// `parse_response`.
class Response {
  public:
    Response(const Frame& frame, std::string& out, std::string* reason) : frame_(frame), out_(out), reason_(reason) {}

    bool read(Reader& reader) {
        if (!reader.literal("{")) return false;
        do {
            std::string_view name;
            reader.spaces();
            if (!reader.name(name)) return false;
            reader.spaces();
            if (!reader.literal(":")) return false;
            reader.spaces();
            if (!member(name, reader)) return false;
            reader.spaces();
        } while (reader.literal(","));
        return reader.literal("}") && has_text_;
    }

    Counts counts;

  private:
    bool member(std::string_view name, Reader& reader) {
        if (name == "text_output") {
            if (has_text_) return false;
            has_text_ = true;
            return text(reader);
        }
        // Of what stands twice, the last one would count.
        if (name == "num_output_tokens") return counts.answer == 0 && reader.count(counts.answer);
        if (name == "num_input_tokens") return counts.prompt == 0 && reader.count(counts.prompt);
        // The text of a JSON value; it comes with the end.
        if (name == "stop_reason") return reader.literal("\"null\"") || reader.literal("null");
        if (name == "finish_reason") {
            if (has_reason_) return false;
            has_reason_ = true;
            if (reader.literal("\"None\"") || reader.literal("null")) return true;
            std::string_view reason;
            if (reason_ == nullptr || !reader.name(reason) || (reason != "stop" && reason != "length")) return false;
            *reason_ = reason;
            return true;
        }
        // Such as model_name; an answer's text is in none of them.
        std::string_view value;
        std::int64_t number = 0;
        return name != "error" && (reader.name(value) || reader.count(number) || reader.literal("null") ||
                                   reader.literal("true") || reader.literal("false"));
    }

    bool text(Reader& reader) {
        const std::size_t before = out_.size();
        out_ += frame_.prefix;
        const std::size_t begin = out_.size();
        if (!reader.text(out_)) return false;
        if (out_.size() == begin + 2) {
            // A token without text is no event.
            out_.resize(before);
        } else {
            out_ += frame_.suffix;
        }
        return true;
    }

    const Frame& frame_;
    std::string& out_;
    std::string* const reason_;
    bool has_text_ = false;
    bool has_reason_ = false;
};

}  // namespace

bool translate(
    std::string_view body, const Frame& frame, std::string& out, Counts& counts, std::string* reason) {
    while (!body.empty()) {
        if (reason != nullptr && !reason->empty()) return false;
        Reader reader(body);
        Response response(frame, out, reason);
        if (!reader.literal("data: ") || !response.read(reader) || !reader.literal("\n\n")) return false;
        counts.answer += response.counts.answer;
        if (response.counts.prompt != 0) counts.prompt = response.counts.prompt;
        body = reader.left();
    }
    return true;
}

Chunk chunk_at(std::string_view bytes) {
    using State = Chunk::State;
    std::size_t length = 0;
    std::size_t digits = 0;
    for (; digits < bytes.size(); ++digits) {
        const int value = hex_value(bytes[digits]);
        if (value < 0) break;
        length = length << 4 | static_cast<std::size_t>(value);
        if (length > kLongestBody || digits > 8) return {State::kStrange};
    }
    const std::string_view line_end = bytes.substr(digits, 2);
    if (digits == 0 ? !bytes.empty() : line_end != std::string_view("\r\n").substr(0, line_end.size())) {
        return {State::kStrange};
    }
    if (line_end.size() < 2) return {State::kPartial};
    if (length == 0) return {State::kStrange};
    const std::size_t begin = digits + 2;
    if (bytes.size() < begin + length + 2) return {State::kPartial};
    if (bytes.substr(begin + length, 2) != "\r\n") return {State::kStrange};
    return {State::kWhole, bytes.substr(begin, length), begin + length + 2};
}

}  // namespace relay
