#include "machine.hpp"

namespace constraints {

namespace {

struct Known {
    std::vector<std::string> arguments;
    Factory factory;
};

std::map<std::string, Known>& constraints_by_name() {
    // In a function: the files of machines/ register before main, in no order.
    static std::map<std::string, Known> known;
    return known;
}

std::string known_names() {
    std::string names;
    for (const auto& [name, known] : constraints_by_name()) names += (names.empty() ? "" : ", ") + name;
    return names;
}

}  // namespace

Registered::Registered(const char* name, std::vector<std::string> arguments, Factory factory) {
    constraints_by_name().emplace(name, Known{std::move(arguments), factory});
}

std::unique_ptr<Machine> make_machine(const Value& value, const Setting& setting) {
    const Object& object = object_at(kPath, value);
    if (object.size() != 1) throw ArgumentError(kPath, "must have exactly one member, one of: " + known_names() + ".");
    const auto& [name, content] = *object.begin();
    const auto known = constraints_by_name().find(name);
    const std::string path = kPath + "." + name;
    if (known == constraints_by_name().end())
        throw ArgumentError(path, "is not a constraint that this engine has; it has: " + known_names() + ".");
    return known->second.factory(Arguments(path, content, known->second.arguments), setting);
}

}  // namespace constraints
