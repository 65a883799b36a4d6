// How the answers to requests of one form are told: what their events have in common. Each event begins with what names
// the answer, its identity, which is not in here.

#pragma once

#include <string>

namespace relay {

struct Telling {
    /// Ahead of the first text.
    std::string begin;
    /// Around each text, which is a JSON string.
    std::string before, after;
    /// Around the reason of the end, which is a JSON string.
    std::string finish_before, finish_after;
    /// Around the usage, a JSON object; `usage_before` is empty where it is not wanted.
    std::string usage_before, usage_after;
    /// Behind all, whole.
    std::string end;
};

}  // namespace relay
