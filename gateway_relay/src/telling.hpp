// How the answers to requests of one form are told: what their events have in common. Each event begins with what names
// the answer, its `identity`, which is not in here.

#pragma once

#include <string>
#include <string_view>

#include "event.hpp"
#include "stream.hpp"

namespace relay {

/// As the parts of `Frame` and `Script` that they become.
struct Telling {
    std::string begin;
    std::string before, after;
    std::string finish_before, finish_after;
    std::string usage_before, usage_after;
    std::string end;

    [[nodiscard]] Frame frame(std::string_view identity) const { return {joined(identity, before), after}; }

    [[nodiscard]] Script script(std::string_view head, std::string_view identity) const {
        return {
            std::string(head),
            joined(identity, begin),
            joined(identity, finish_before),
            finish_after,
            usage_before.empty() ? std::string() : joined(identity, usage_before),
            usage_after,
            end,
        };
    }

  private:
    static std::string joined(std::string_view identity, std::string_view rest) {
        std::string out;
        out.reserve(identity.size() + rest.size());
        return out.append(identity).append(rest);
    }
};

}  // namespace relay
