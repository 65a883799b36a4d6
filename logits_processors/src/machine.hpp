// What a constraint is to the rest: a state machine over one request's generated tokens that says which may come next.
//
// A new constraint is one file in machines/, which ends with a `Registered`. Its name is the one that requests use.

#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "arguments.hpp"
#include "mask.hpp"
#include "values.hpp"

namespace constraints {

class CatalogStore;

class Machine {
  public:
    Machine() { will_read(this); }
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
    virtual ~Machine() = default;

    /// Back to where no token has been generated.
    virtual void reset() = 0;

    /// The next generated token. Any token may come, also one that the last mask did not allow.
    virtual void advance(Token token) = 0;

    /// Says what may come next: `row.forbid_all()` or `row.allow_all()`, then the tokens that differ. A row that is left
    /// without any token gets the end token from the caller.
    virtual void mask(MaskRow& row) const = 0;

    /// Fetches into the caches what `advance` will read for this token, as far as the machine has said what that is.
    void prefetch(Token token) const {
        __builtin_prefetch(reinterpret_cast<const void*>(reads_.always));
        __builtin_prefetch(reinterpret_cast<const void*>(reads_.table + std::uintptr_t{reads_.stride} * (token >> reads_.shift)));
    }

  protected:
    /// Addresses that are far away: one, and that in a table which has `stride` bytes for each two to the `shift` tokens.
    /// They need not be right: nothing is read.
    struct Reads {
        std::uintptr_t always = 0;
        std::uintptr_t table = 0;
        std::uint16_t stride = 0;
        std::uint16_t shift = 0;
    };
    void will_read(const void* always) {
        const auto address = reinterpret_cast<std::uintptr_t>(always);
        reads_ = {address, address};
    }
    mutable Reads reads_;
};

/// What a machine may ask of its engine while it is made.
struct Setting {
    CatalogStore& catalogs;
    /// The tokens of a text, without special ones.
    std::function<std::vector<Token>(const std::string&)> encode;
    /// The tokens that end the output.
    std::vector<Token> ends;
};

/// Makes the machine of a constraint, or throws ArgumentError.
using Factory = std::unique_ptr<Machine> (*)(const Arguments& arguments, const Setting& setting);

/// Adds a constraint, with the names of its arguments, to those that `make_machine` knows.
struct Registered {
    Registered(const char* name, std::vector<std::string> arguments, Factory factory);
};

/// The machine for a request's `constraints`: an object with one member, named like a constraint, that holds the
/// arguments. Throws ArgumentError.
std::unique_ptr<Machine> make_machine(const Value& value, const Setting& setting);

/// Where in a request the constraint stands.
inline const std::string kPath = "extra_args.constraints";

}  // namespace constraints
