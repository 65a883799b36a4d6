// Reading the arguments of one constraint: each by its name and with its bounds, and no others.

#pragma once

#include "values.hpp"

namespace constraints {

class Arguments {
  public:
    /// `path` is where the arguments stand in the request; `names` are those that there may be.
    Arguments(std::string path, const Value& value, const std::vector<std::string>& names);

    /// A text of 1 to `longest` bytes.
    [[nodiscard]] const std::string& text(const std::string& name, std::size_t longest) const;

    /// A whole number from `least` to `most`.
    [[nodiscard]] std::int64_t integer(const std::string& name, std::int64_t least, std::int64_t most) const;

    [[nodiscard]] bool has(const std::string& name) const { return object_.contains(name); }

    [[noreturn]] void refuse(const std::string& name, const std::string& problem) const;

  private:
    [[nodiscard]] const Value& required(const std::string& name) const;

    std::string path_;
    Object object_;
};

/// The object that `value` is; throws ArgumentError if it is none.
const Object& object_at(const std::string& path, const Value& value);

}  // namespace constraints
