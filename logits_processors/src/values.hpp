// The words that all files share: a token, what a request's argument may hold, and the error that names an argument.

#pragma once

#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <variant>
#include <vector>

namespace constraints {

using Token = std::uint32_t;

struct Value;
using Object = std::map<std::string, Value>;

/// One value of a JSON document. Lists are of no use to any constraint yet; they are kept as what they are called.
struct Value {
    struct Other {
        std::string type;
    };
    std::variant<bool, std::int64_t, std::string, Object, Other> content;
};

/// An argument that a request must not have; the text begins with the argument's path, as in
/// `extra_args.constraints.catalog.name: …`.
struct ArgumentError : std::runtime_error {
    ArgumentError(const std::string& path, const std::string& problem) : std::runtime_error(path + ": " + problem) {}
};

}  // namespace constraints
