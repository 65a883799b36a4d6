// What the sanitizers watch: broken bytes of every kind through the translation, and streams that begin, end, are stopped
// from another thread, lose their client or their upstream, all at once. Without an argument of its own it always does the
// same; the exit code is 0 unless something is wrong.

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "relay.hpp"

namespace {

using namespace relay;

const Frame kFrame{"<", ">"};

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s does not hold\n", what);
    std::exit(1);
}

std::string chunk(const std::string& body) {
    char line[32];
    std::snprintf(line, sizeof line, "%zx\r\n", body.size());
    return line + body + "\r\n";
}

std::string event(const std::string& text) {
    return "data: {\"model_name\":\"m\",\"text_output\":\"" + text +
           "\",\"finish_reason\":\"None\",\"num_input_tokens\":3,\"num_output_tokens\":1}\n\n";
}

/// Every prefix, and many broken copies; each in memory of exactly its size.
void translate_broken() {
    std::mt19937 random(1);
    const std::vector<std::string> bodies = {
        event("abc"), event("\\u00e9\\ud83d\\ude00\\n\\/\\\""), event("\xe6\x97\xa5\xf0\x9f\x8e\x89\xc3\xa9") + event(""),
        "data: {\"error\":\"x\"}\n\n", "data: {}\n\n", "", "data: ",
    };
    const auto both = [](const std::string& bytes) {
        const std::vector<char> exact(bytes.begin(), bytes.end());
        const std::string_view view(exact.data(), exact.size());
        std::string out;
        Counts counts;
        translate(view, kFrame, out, counts);
        const Chunk found = chunk_at(view);
        require(found.size <= view.size(), "a chunk within its bytes");
    };
    for (const std::string& body : bodies) {
        for (const std::string& whole : {body, chunk(body)}) {
            for (std::size_t length = 0; length <= whole.size(); ++length) both(whole.substr(0, length));
            for (int i = 0; i < 20000 && !whole.empty(); ++i) {
                std::string broken = whole;
                for (unsigned breaks = random() % 4 + 1; breaks > 0 && !broken.empty(); --breaks) {
                    const std::size_t at = random() % broken.size();
                    switch (random() % 4) {
                        case 0: broken[at] = static_cast<char>(random()); break;
                        case 1: broken.erase(at, random() % 8 + 1); break;
                        case 2: broken.insert(at, broken.substr(at, random() % 8 + 1)); break;
                        default: broken[at] ^= static_cast<char>(1u << random() % 8);
                    }
                }
                both(broken);
            }
        }
    }
}

struct Pair {
    int here;
    int there;

    Pair() {
        int both[2];
        require(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, both) == 0, "a pair of sockets");
        here = both[0];
        there = both[1];
    }
};

/// Many streams, each with a course of its own, started and stopped by one thread while the relay moves them.
void run_streams() {
    std::mt19937 random(2);
    Relay relay({0.001, 0.01});
    std::atomic<bool> is_over{false};
    std::vector<std::uint64_t> ended;
    // Whoever looks at the counters does so while they change.
    for (int round = 0; round < 30; ++round) {
        struct Open {
            Pair upstream, client;
            std::shared_ptr<Stream> stream;
            std::size_t sent = 0;
            bool is_stopped = false;
        };
        std::vector<Open> open(40);
        for (Open& one : open) {
            const int small = 4096;
            setsockopt(one.client.there, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
            one.stream = relay.start(one.upstream.there, one.client.there, kFrame, 0.0);
        }
        std::thread client([&] {
            std::vector<char> bytes(65536);
            while (!is_over) {
                for (std::size_t i = 0; i < open.size(); i += 2) {
                    if (recv(open[i].client.here, bytes.data(), bytes.size(), MSG_DONTWAIT) < 0) std::this_thread::yield();
                }
            }
        });
        for (int step = 0; step < 4000; ++step) {
            Open& one = open[random() % open.size()];
            const std::string whole = random() % 50 == 0 ? chunk("data: {}\n\n") : chunk(event(std::string(random() % 600, 'a')));
            const std::size_t cut = random() % (whole.size() + 1);
            if (one.sent == 0 && send(one.upstream.here, whole.data(), cut, MSG_DONTWAIT | MSG_NOSIGNAL) == static_cast<ssize_t>(cut)) {
                if (send(one.upstream.here, whole.data() + cut, whole.size() - cut, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) {
                    one.sent = 1;
                }
            }
            static_cast<void>(one.stream->tokens.load());
            static_cast<void>(one.stream->is_held.load());
            switch (random() % 400) {
                case 0:
                    relay.stop(*one.stream);
                    one.is_stopped = true;
                    break;
                case 1: shutdown(one.upstream.here, SHUT_WR); break;
                case 2: shutdown(one.client.here, SHUT_RDWR); break;
                default: break;
            }
            if (step % 16 == 0) {
                for (const std::uint64_t number : relay.ended()) ended.push_back(number);
            }
        }
        for (Open& one : open) {
            const Outcome outcome = relay.stop(*one.stream);
            require(!one.is_stopped || outcome.rest.empty(), "the outcome is for the first");
        }
        is_over = true;
        client.join();
        is_over = false;
        for (Open& one : open) {
            for (const int socket : {one.upstream.here, one.upstream.there, one.client.here, one.client.there}) close(socket);
        }
    }
    require(!ended.empty(), "some streams ended by themselves");
}

/// A relay that is gone before its streams.
void outlive() {
    Pair upstream, client;
    std::shared_ptr<Stream> stream;
    {
        Relay relay({});
        stream = relay.start(upstream.there, client.there, kFrame, 0.0);
    }
    const std::string bytes = chunk(event("a"));
    require(send(upstream.here, bytes.data(), bytes.size(), 0) > 0, "sent");
    stream.reset();
    for (const int socket : {upstream.here, upstream.there, client.here, client.there}) close(socket);
}

}  // namespace

int main() {
    translate_broken();
    run_streams();
    outlive();
}
