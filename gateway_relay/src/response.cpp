#include "response.hpp"

#include <algorithm>
#include <charconv>
#include <limits>

#include "http.hpp"

namespace response {

namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool is_number(std::string_view text) { return !text.empty() && std::all_of(text.begin(), text.end(), is_digit); }

/// As Python's `bytes.strip`.
std::string_view stripped(std::string_view text) { return http::stripped(text, " \t\n\r\x0b\x0c"); }

/// What stands before the first `mark`, and behind it; nothing behind where there is none.
std::pair<std::string_view, std::string_view> parted(std::string_view text, char mark) {
    const std::size_t at = text.find(mark);
    if (at == std::string_view::npos) return {text, {}};
    return {text.substr(0, at), text.substr(at + 1)};
}

}  // namespace

void Parser::feed(std::string_view data) {
    if (done) throw ProtocolError("bytes after the end of the response");
    std::string joined;
    if (!raw_.empty()) {
        joined = std::move(raw_);
        joined += data;
        data = joined;
        raw_.clear();
    }
    if (status == 0 && !parse_head(data)) {
        raw_ = data;
        return;
    }
    if (chunked_) {
        parse_chunks(data);
    } else {
        parse_plain(data);
    }
}

void Parser::eof() {
    if (status != 0 && !chunked_ && !left_) {
        done = true;
    } else if (!done) {
        throw ProtocolError("the connection was closed in the middle of the response");
    }
}

bool Parser::parse_head(std::string_view& data) {
    std::string_view lines, version;
    const auto next_line = [&lines] {
        const std::size_t stop = lines.find("\r\n");
        const std::string_view line = lines.substr(0, stop);
        lines.remove_prefix(stop == std::string_view::npos ? lines.size() : stop + 2);
        return line;
    };
    int found = 0;
    // Ahead of the response there may be interim ones.
    while (found < 200) {
        const std::size_t end = data.find("\r\n\r\n");
        if (end == std::string_view::npos) {
            if (data.size() > limits_.head) throw ProtocolError("the response head is too long");
            return false;
        }
        lines = data.substr(0, end);
        data.remove_prefix(end + 4);
        const auto [before, rest] = parted(next_line(), ' ');
        const std::string_view code = rest.substr(0, 3);
        version = before;
        found = 0;
        if (is_number(code)) std::from_chars(code.data(), code.data() + code.size(), found);
        if (!version.starts_with("HTTP/1.") || found < 100)
            throw ProtocolError("the response has no HTTP/1.1 status line");
    }
    std::string connection, coding;
    std::optional<std::string_view> length;
    while (!lines.empty()) {
        const auto [name, value] = parted(next_line(), ':');
        const std::string known = http::lower(stripped(name));
        if (known == "connection") connection = http::lower(stripped(value));
        if (known == "transfer-encoding") coding = http::lower(stripped(value));
        if (known == "content-length") length = stripped(value);
    }
    status = found;
    reusable = version == "HTTP/1.1" && connection != "close";
    chunked_ = coding.find("chunked") != std::string::npos;
    if (chunked_) return true;
    if (!length) {
        left_.reset();
        reusable = false;
    } else if (is_number(*length)) {
        std::uint64_t size = 0;
        const auto result = std::from_chars(length->data(), length->data() + length->size(), size);
        left_ = result.ec == std::errc() ? size : std::numeric_limits<std::uint64_t>::max();
    } else {
        throw ProtocolError("the response has a Content-Length that is no number");
    }
    return true;
}

void Parser::parse_plain(std::string_view data) {
    if (!left_) {
        take_body(data);
        return;
    }
    if (data.size() > *left_) throw ProtocolError("bytes after the end of the response");
    *left_ -= data.size();
    take_body(data);
    done = left_ == 0;
}

void Parser::parse_chunks(std::string_view data) {
    std::string body;
    while (!data.empty() && !done) {
        if (*left_ > 0) {
            // It counts the chunk's closing CRLF too.
            const std::string_view part = data.substr(0, *left_);
            data.remove_prefix(part.size());
            *left_ -= part.size();
            const std::size_t framing = *left_ < 2 ? 2 - *left_ : 0;
            body += part.substr(0, part.size() - std::min(part.size(), framing));
            continue;
        }
        const std::size_t end = data.find("\r\n");
        if (end == std::string_view::npos) {
            if (data.size() > limits_.head) throw ProtocolError("a chunk's size line is too long");
            break;
        }
        const std::string_view line = data.substr(0, end);
        data.remove_prefix(end + 2);
        if (in_trailer_) {
            done = line.empty();
        } else {
            start_chunk(line);
        }
    }
    raw_ = data;
    if (!body.empty()) take_body(body);
    if (done && !raw_.empty()) throw ProtocolError("bytes after the end of the response");
}

void Parser::start_chunk(std::string_view line) {
    const std::string_view text = stripped(parted(line, ';').first);
    std::uint64_t size = 0;
    const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), size, 16);
    if (text.empty() || stop != text.data() + text.size() || error == std::errc::invalid_argument)
        throw ProtocolError("a chunk has no size");
    if (error != std::errc() || size > limits_.event) throw ProtocolError("a chunk is too long");
    if (size > 0) {
        left_ = size + 2;
    } else {
        in_trailer_ = true;
    }
}

void Parser::take_body(std::string_view data) {
    if (status != 200) {
        error_body += data;
        if (error_body.size() > limits_.event) throw ProtocolError("the error body is too long");
        return;
    }
    std::vector<std::string> found;
    std::string begun = std::move(line_);
    line_.clear();
    while (true) {
        const std::size_t end = data.find('\n');
        if (end == std::string_view::npos) break;
        std::string_view line = data.substr(0, end);
        if (!begun.empty()) {
            begun += line;
            line = begun;
        }
        if (line.starts_with("data:")) found.emplace_back(stripped(line.substr(5)));
        begun.clear();
        data.remove_prefix(end + 1);
    }
    line_ = std::move(begun);
    line_ += data;
    if (line_.size() > limits_.event) throw ProtocolError("an event is too long");
    for (std::string& event : found) events.push_back(std::move(event));
}

}  // namespace response
