#include "upstreams.hpp"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <utility>

#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>

#include "clock.hpp"

namespace relay {

namespace {

/// Whether nothing has come, not even the end: what comes between two requests is no answer to the next.
bool is_quiet(int socket) {
    char byte = 0;
    return recv(socket, &byte, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && (errno == EAGAIN || errno == EWOULDBLOCK);
}

}  // namespace

Upstreams::Upstreams(const std::string& host, const std::string& port, std::size_t most) : most_(most) {
    addrinfo hints{};
    hints.ai_flags = AI_NUMERICHOST | AI_NUMERICSERV;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (const int failed = getaddrinfo(host.c_str(), port.c_str(), &hints, &found); failed != 0)
        throw std::invalid_argument(gai_strerror(failed));
    length_ = found->ai_addrlen;
    std::memcpy(&address_, found->ai_addr, length_);
    freeaddrinfo(found);
}

Upstreams::Socket Upstreams::take() {
    const std::lock_guard lock(mutex_);
    while (!kept_.empty()) {
        Socket socket = std::move(kept_.back().socket);
        kept_.pop_back();
        if (is_quiet(socket->number())) return socket;
    }
    return nullptr;
}

Upstreams::Socket Upstreams::connect() const {
    auto socket = std::make_unique<Descriptor>(
        ::socket(address_.ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), "socket");
    const int one = 1;
    setsockopt(socket->number(), IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    const auto* const address = reinterpret_cast<const sockaddr*>(&address_);
    if (::connect(socket->number(), address, length_) != 0 && errno != EINPROGRESS)
        throw std::system_error(errno, std::generic_category(), "connect");
    return socket;
}

void Upstreams::give_back(Socket socket) {
    const std::lock_guard lock(mutex_);
    if (kept_.size() < most_) kept_.push_back({std::move(socket), monotonic_seconds()});
}

double Upstreams::close_idle(double seconds) {
    const double oldest = monotonic_seconds() - seconds;
    const std::lock_guard lock(mutex_);
    const auto first =
        std::find_if(kept_.begin(), kept_.end(), [oldest](const Kept& one) { return one.since > oldest; });
    kept_.erase(kept_.begin(), first);
    return kept_.empty() ? 0 : kept_.front().since - oldest;
}

void Upstreams::close() {
    const std::lock_guard lock(mutex_);
    most_ = 0;
    kept_.clear();
}

}  // namespace relay
