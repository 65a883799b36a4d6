#include "catalog_store.hpp"

#include <sys/stat.h>

#include <algorithm>

namespace constraints {

namespace {

constexpr std::size_t kLongestName = 128;

}  // namespace

bool CatalogStore::is_name(const std::string& name) {
    const auto is_plain = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); };
    return !name.empty() && name.size() <= kLongestName && is_plain(name[0]) &&
           std::all_of(name.begin(), name.end(),
                       [&](char c) { return is_plain(c) || c == '.' || c == '_' || c == '-'; });
}

CatalogStore::CatalogStore(std::optional<std::string> folder, Fingerprint fingerprint)
    : folder_(std::move(folder)), fingerprint_(fingerprint) {}

std::shared_ptr<const Catalog> CatalogStore::get(const std::string& name) {
    struct stat status {};
    const std::string path = folder_.value_or("") + "/" + name + ".catalog";
    if (!folder_ || ::stat(path.c_str(), &status) != 0) {
        mapped_.erase(name);
        throw CatalogError("is not among this engine's catalogues");
    }
    const Identity identity{status.st_dev, status.st_ino, status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec};
    const auto known = mapped_.find(name);
    if (known != mapped_.end() && known->second.identity == identity) return known->second.catalog;
    mapped_.erase(name);
    auto catalog = std::make_shared<const Catalog>(path);
    if (catalog->header().fingerprint != fingerprint_)
        throw CatalogError("was built with another tokenizer than this model's; build it again with this one's");
    mapped_[name] = {identity, catalog};
    return catalog;
}

}  // namespace constraints
