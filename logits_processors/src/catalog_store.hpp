// The folder of catalogues: each is mapped once, and anew when its file was replaced.

#pragma once

#include <sys/types.h>

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>

#include "catalog.hpp"

namespace constraints {

class CatalogStore {
  public:
    /// Without a folder there are no catalogues. All must be of the tokenizer with `fingerprint`.
    CatalogStore(std::optional<std::string> folder, Fingerprint fingerprint);

    /// Whether a catalogue can have that name: it becomes part of a path.
    static bool is_name(const std::string& name);

    /// The catalogue NAME.catalog of the folder, by a name for which `is_name` holds. Throws CatalogError, whose text goes behind its name.
    std::shared_ptr<const Catalog> get(const std::string& name);

  private:
    // Of a file: device, inode, size and time of its last change.
    using Identity = std::tuple<dev_t, ino_t, off_t, time_t, long>;
    struct Mapped {
        Identity identity;
        std::shared_ptr<const Catalog> catalog;
    };

    std::optional<std::string> folder_;
    Fingerprint fingerprint_;
    std::map<std::string, Mapped> mapped_;
};

}  // namespace constraints
