// A program for the sanitizers: rows of all sizes, batches whose rows come, go and move while other threads compute,
// catalogues of all sizes, and files that somebody has made wrong with a right checksum. `driver FOLDER`. Exit code 0 if
// all was well.

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <iterator>
#include <random>
#include <set>

#include "batch.hpp"
#include "catalog_builder.hpp"
#include "catalog_store.hpp"

using namespace constraints;

namespace {

std::mt19937 choose(1);

std::size_t below(std::size_t limit) { return std::uniform_int_distribution<std::size_t>(0, limit - 1)(choose); }

void require(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "%s\n", what);
    std::exit(1);
}

constexpr std::uint32_t kVocabulary = 500;
constexpr Token kEnd = 499;

std::set<std::vector<Token>> write_catalog(const std::string& path, std::size_t entries) {
    CatalogBuilder builder(kVocabulary, {});
    std::set<std::vector<Token>> all;
    const std::size_t different = 2 + below(300);
    for (std::size_t index = 0; index < entries; ++index) {
        std::vector<Token> entry(1 + below(6));
        for (Token& token : entry) token = static_cast<Token>(below(different));
        builder.add(entry);
        all.insert(entry);
    }
    require(builder.write(path) == all.size(), "not as many entries as were given");
    return all;
}

Value value(std::int64_t number) { return {number}; }
Value value(const std::string& text) { return {text}; }

Value any_request(std::size_t catalog) {
    if (below(4) == 0) return {Object{{"no_repeat_ngram", {Object{{"size", value(std::int64_t(1 + below(3)))}}}}}};
    Object arguments{{"name", value("c" + std::to_string(catalog))}};
    if (below(2) == 0) {
        arguments["items"] = value(std::int64_t{2});
        arguments["separator"] = value(",");
    }
    return {Object{{"catalog", {arguments}}}};
}

void run_batches(const std::string& folder) {
    constexpr std::size_t kRows = 24;
    CatalogStore store(folder, {});
    const Setting setting{store, [](const std::string&) { return std::vector<Token>{450, 451}; }, {kEnd}};
    for (unsigned threads = 1; threads <= 4; ++threads) {
        Batch batch(kVocabulary, kRows, threads);
        std::vector<float> logits(kRows * (kVocabulary + 5));
        for (int step = 0; step < 300; ++step) {
            for (int change = 0; change < 3; ++change) {
                const std::size_t row = below(kRows), other = below(kRows);
                switch (below(4)) {
                    case 0:
                        batch.put(row, make_machine(any_request(below(4)), setting), {kEnd});
                        break;
                    case 1:
                        batch.remove(row);
                        break;
                    case 2:
                        batch.move(row, other);
                        break;
                    default:
                        batch.swap(row, other);
                }
            }
            // Tokens that a mask allows, and some that it does not.
            for (const auto& [row, place] : batch.constrained()) {
                const std::size_t known = batch.output(place).size();
                if (below(20) == 0 && known > 0)
                    batch.cut(place, below(known));
                else if (below(2) == 0) {
                    Token token = static_cast<Token>(below(kVocabulary));
                    for (std::uint32_t column = 0; column < kVocabulary && below(10) != 0; ++column)
                        if (logits[row * (kVocabulary + 5) + column] == 1) token = column;
                    batch.append(place, token);
                }
            }
            batch.start();
            std::fill(logits.begin(), logits.end(), 1.0f);
            if (below(5) == 0) batch.finish();
            batch.apply({logits.data(), kVocabulary + 5, kRows, kVocabulary, Element::float32});
            for (const auto& [row, place] : batch.constrained()) {
                const float* begin = logits.data() + row * (kVocabulary + 5);
                require(std::count(begin, begin + kVocabulary, 1.0f) > 0, "a row without any token");
                require(std::count(begin + kVocabulary, begin + kVocabulary + 5, 1.0f) == 5, "written behind a row");
            }
        }
    }
}

/// Rows of all sizes, against sets of tokens.
void change_rows() {
    for (int round = 0; round < 3000; ++round) {
        const auto vocabulary = static_cast<std::uint32_t>(1 + below(600));
        const std::uint32_t size = MaskRow::words_for(vocabulary);
        const std::size_t memory = (size + Cell::kWords - 1) / Cell::kWords * Cell::kWords;
        std::vector<std::uint32_t> words(memory, 0xdeadbeef), set;
        MaskRow row(words.data(), vocabulary, below(2) == 0);
        for (int mask = 0; mask < 6; ++mask) {
            std::set<Token> allowed;
            if (below(3) == 0) {
                row.allow_all();
                for (Token token = 0; token < vocabulary; ++token) allowed.insert(allowed.end(), token);
            } else {
                row.forbid_all();
                if (below(2) == 0) {
                    for (std::size_t number = below(40); number > 0; --number)
                        allowed.insert(static_cast<Token>(below(vocabulary)));
                    std::vector<Child> children;
                    for (const Token token : allowed) children.push_back({token, 0});
                    const auto cells = cells_of(children);
                    set.assign(size, 0);
                    for (const Token token : allowed) set[token / 32] |= std::uint32_t{1} << (token % 32);
                    if (below(2) == 0)
                        row.allow_cells(cells, static_cast<std::uint32_t>(allowed.size()));
                    else
                        row.allow_set(set, static_cast<std::uint32_t>(allowed.size()));
                }
            }
            for (std::size_t number = below(30); number > 0; --number) {
                const auto token = static_cast<Token>(below(vocabulary + 3));
                if (below(2) == 0) {
                    row.forbid(token);
                    allowed.erase(token);
                } else {
                    row.allow(token);
                    if (token < vocabulary) allowed.insert(token);
                }
            }
            require(row.allowed() == allowed.size(), "not as many tokens as are allowed");
            for (Token token = 0; token < 32 * size; ++token)
                require((row.words()[token / 32] >> (token % 32) & 1) == allowed.count(token), "another mask");
        }
    }
}

std::string read_file(const std::string& path) {
    std::ifstream file(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(file), {}};
}

void seal(std::string& bytes) {
    Header header;
    std::memcpy(&header, bytes.data(), sizeof(header));
    header.file_size = bytes.size();
    header.checksum = 0;
    std::memcpy(bytes.data(), &header, sizeof(header));
    Checksum sum;
    sum.add(std::as_bytes(std::span(bytes).first(sizeof(Header))));
    sum.add(std::as_bytes(std::span(bytes).subspan(sizeof(Header))));
    header.checksum = sum.value();
    std::memcpy(bytes.data(), &header, sizeof(header));
}

/// A file whose cells are not its children, with a right checksum.
void refuse_wrong_cells(const std::string& path) {
    CatalogBuilder builder(kVocabulary, {});
    for (Token token = 10; token < 10 + 2 * kManyChildren; ++token) builder.add(std::span(&token, 1));
    builder.write(path);
    const std::string good = read_file(path);
    const std::size_t begin = sizeof(Header) + 4, end = begin + 4 * (1 + kCellSize);
    for (std::size_t place = begin; place < end; ++place) {
        std::string bytes = good;
        bytes[place] = static_cast<char>(bytes[place] ^ (1 << below(8)));
        seal(bytes);
        std::ofstream(path, std::ios::binary) << bytes;
        bool is_refused = false;
        try {
            const Catalog catalog(path);
        } catch (const CatalogError&) {
            is_refused = true;
        }
        require(is_refused, "wrong cells were taken");
    }
}

/// Files with wrong words and a right checksum: refused, or harmless.
void open_hostile_files(const std::string& folder) {
    write_catalog(folder + "/c9.catalog", 60);
    const std::string good = read_file(folder + "/c9.catalog");
    int refused = 0, opened = 0;
    for (int round = 0; round < 4000; ++round) {
        std::string bytes = good;
        for (std::size_t change = 0; change <= below(3); ++change) {
            const std::size_t place = 8 + below(bytes.size() - 8);
            bytes[place] = static_cast<char>(below(2) == 0 ? below(256) : bytes[place] ^ (1 << below(8)));
        }
        if (below(10) == 0) bytes.resize(sizeof(Header) + below(bytes.size() - sizeof(Header)));
        seal(bytes);
        std::ofstream(folder + "/c9.catalog", std::ios::binary) << bytes;
        try {
            CatalogStore store(folder, {});
            const Setting setting{store, [](const std::string&) { return std::vector<Token>{450}; }, {kEnd}};
            const Value request{Object{{"catalog", {Object{{"name", value("c9")}}}}}};
            Batch batch(kVocabulary, 1, 1);
            const auto place = batch.put(0, make_machine(request, setting), {kEnd});
            std::vector<float> logits(kVocabulary);
            for (int step = 0; step < 12; ++step) {
                std::fill(logits.begin(), logits.end(), 1.0f);
                batch.apply({logits.data(), kVocabulary, 1, kVocabulary, Element::float32});
                const auto allowed = std::find(logits.begin(), logits.end(), 1.0f);
                require(allowed != logits.end(), "a row without any token");
                const Token token = static_cast<Token>(allowed - logits.begin());
                batch.append(*place, token);
            }
            ++opened;
        } catch (const ArgumentError&) {
            ++refused;
        }
    }
    require(refused > 100 && opened > 100, "the changes were all of one kind");
}

}  // namespace

int main(int count, char** arguments) {
    require(count == 2, "driver FOLDER");
    const std::string folder = arguments[1];
    for (std::size_t number = 0; number < 4; ++number) {
        const std::string path = folder + "/c" + std::to_string(number) + ".catalog";
        const auto entries = write_catalog(path, std::size_t{1} << (3 * number + 1));
        const Catalog catalog(path);
        for (const auto& entry : entries) require(catalog.contains(entry), "an entry is missing");
    }
    change_rows();
    run_batches(folder);
    refuse_wrong_cells(folder + "/c8.catalog");
    open_hostile_files(folder);
    return 0;
}
