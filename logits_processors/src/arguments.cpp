#include "arguments.hpp"

#include <algorithm>

namespace constraints {

const Object& object_at(const std::string& path, const Value& value) {
    const auto* object = std::get_if<Object>(&value.content);
    if (object == nullptr) throw ArgumentError(path, "must be an object.");
    return *object;
}

Arguments::Arguments(std::string path, const Value& value, const std::vector<std::string>& names)
    : path_(std::move(path)), object_(object_at(path_, value)) {
    for (const auto& [name, argument] : object_) {
        if (std::find(names.begin(), names.end(), name) != names.end()) continue;
        std::string known;
        for (const auto& one : names) known += (known.empty() ? "" : ", ") + one;
        refuse(name, "is not an argument of this constraint; there are: " + known + ".");
    }
}

void Arguments::refuse(const std::string& name, const std::string& problem) const {
    throw ArgumentError(path_ + "." + name, problem);
}

const Value& Arguments::required(const std::string& name) const {
    const auto found = object_.find(name);
    if (found == object_.end()) refuse(name, "is missing.");
    return found->second;
}

const std::string& Arguments::text(const std::string& name, std::size_t longest) const {
    const auto* text = std::get_if<std::string>(&required(name).content);
    if (text == nullptr) refuse(name, "must be a string.");
    if (text->empty() || text->size() > longest)
        refuse(name, "must have 1 to " + std::to_string(longest) + " bytes, not " + std::to_string(text->size()) + ".");
    return *text;
}

std::int64_t Arguments::integer(const std::string& name, std::int64_t least, std::int64_t most) const {
    const auto* number = std::get_if<std::int64_t>(&required(name).content);
    if (number == nullptr || *number < least || *number > most)
        refuse(name, "must be a whole number from " + std::to_string(least) + " to " + std::to_string(most) + ".");
    return *number;
}

}  // namespace constraints
