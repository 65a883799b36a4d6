// Connections to one Triton, which are kept when a request is over, for the next one.

#pragma once

#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <sys/socket.h>

#include "descriptor.hpp"

namespace relay {

class Upstreams {
  public:
    using Socket = std::unique_ptr<Descriptor>;

    /// `host` is an IP address; up to `most` connections are kept. Throws std::invalid_argument.
    Upstreams(const std::string& host, const std::string& port, std::size_t most);

    /// A connection that has carried a request before; none where none is kept.
    Socket take();

    /// A new one, which does not block and may not be connected yet. Throws std::system_error.
    [[nodiscard]] Socket connect() const;

    /// Its last answer is read to the end.
    void give_back(Socket socket);

    /// Those that nobody has taken for so long. In how many seconds the next one will be due; 0 where none is left.
    double close_idle(double seconds);

    /// None is kept from now on.
    void close();

  private:
    struct Kept {
        Socket socket;
        double since;
    };

    sockaddr_storage address_{};
    socklen_t length_ = 0;
    std::mutex mutex_;
    std::size_t most_;
    /// The first were given back first.
    std::vector<Kept> kept_;
};

}  // namespace relay
