// What Python sees of the C++: the conversions between Python's objects and the types of the other files, no logic but
// the reading of output lists, which are Python's.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <array>

#include "batch.hpp"
#include "catalog_builder.hpp"
#include "catalog_store.hpp"
#include "stages.hpp"

namespace nb = nanobind;

namespace constraints {

namespace {

/// Deeper than any constraint's arguments.
constexpr int kDeepest = 4;

Value value_of(nb::handle object, int depth = 0) {
    const Value other{Value::Other{nb::cast<std::string>(nb::str(object.type().attr("__name__")))}};
    if (nb::isinstance<nb::bool_>(object)) return {nb::cast<bool>(object)};
    if (nb::isinstance<nb::int_>(object)) {
        int overflow = 0;
        const long long number = PyLong_AsLongLongAndOverflow(object.ptr(), &overflow);
        return overflow != 0 ? other : Value{std::int64_t{number}};
    }
    if (nb::isinstance<nb::str>(object)) {
        Py_ssize_t size = 0;
        const char* text = PyUnicode_AsUTF8AndSize(object.ptr(), &size);
        // Half of a surrogate pair, which JSON can write: no text.
        if (text == nullptr) PyErr_Clear();
        return text == nullptr ? other : Value{std::string(text, static_cast<std::size_t>(size))};
    }
    if (nb::isinstance<nb::dict>(object) && depth < kDeepest) {
        Object members;
        for (const auto& [key, member] : nb::borrow<nb::dict>(object)) {
            const Value name = value_of(key, kDeepest);
            const auto* text = std::get_if<std::string>(&name.content);
            members[text == nullptr ? "?" : *text] = value_of(member, depth + 1);
        }
        return {std::move(members)};
    }
    return other;
}

Fingerprint fingerprint_of(const nb::bytes& bytes) {
    Fingerprint fingerprint;
    if (bytes.size() != fingerprint.size()) throw nb::value_error("a fingerprint has 32 bytes");
    std::copy_n(reinterpret_cast<const std::uint8_t*>(bytes.c_str()), fingerprint.size(), fingerprint.begin());
    return fingerprint;
}

nb::bytes bytes_of(const Fingerprint& fingerprint) { return nb::bytes(fingerprint.data(), fingerprint.size()); }

/// A token as it stands in an output list: -1 is the place of one that is not known yet.
std::optional<Token> token_at(PyObject* list, Py_ssize_t index) {
    PyObject* item = PyList_GET_ITEM(list, index);
#if PY_VERSION_HEX >= 0x030c0000
    if (PyLong_CheckExact(item) && PyUnstable_Long_IsCompact(reinterpret_cast<PyLongObject*>(item))) {
        const Py_ssize_t small = PyUnstable_Long_CompactValue(reinterpret_cast<PyLongObject*>(item));
        return small < 0 ? std::nullopt : std::optional(static_cast<Token>(small));
    }
#else
    // One digit, positive: without the call, which costs more than all else here.
    if (PyLong_CheckExact(item) && Py_SIZE(item) == 1) return reinterpret_cast<PyLongObject*>(item)->ob_digit[0];
#endif
    const long token = PyLong_AsLong(item);
    if (token == -1 && PyErr_Occurred()) throw nb::python_error();
    if (token < 0) return std::nullopt;
    return static_cast<Token>(token);
}

/// A machine on its way into a batch.
struct Prepared {
    std::unique_ptr<Machine> machine;
    std::vector<Token> ends;
};

/// Allows nothing but the end.
class OnlyEnd final : public Machine {
  public:
    void reset() override {}
    void advance(Token) override {}
    void mask(MaskRow& row) const override { row.forbid_all(); }
};

/// What the constraints of one engine are made with.
class Constraints {
  public:
    Constraints(std::optional<std::string> folder, const nb::bytes& fingerprint, nb::callable encode)
        : catalogs_(std::move(folder), fingerprint_of(fingerprint)), encode_(std::move(encode)) {}

    Prepared make(nb::handle constraints, std::vector<Token> ends) {
        const auto encode = [this](const std::string& text) { return nb::cast<std::vector<Token>>(encode_(text)); };
        auto machine = make_machine(value_of(constraints), Setting{catalogs_, encode, ends});
        return {std::move(machine), std::move(ends)};
    }

  private:
    CatalogStore catalogs_;
    nb::callable encode_;
};

/// An output list, and what of it the batch has; in one cache line.
struct alignas(64) Followed {
    static constexpr std::size_t kHeld = 6;

    nb::object list;
    /// How many of its tokens.
    std::size_t known = 0;
    /// The objects of the last ones, the very last one at the end. They are held, so that what has the same address is the
    /// same object, and need not be read to be known.
    std::array<nb::object, kHeld> held;

    /// Whether the list still has what is known of it, as far as the objects that are held tell.
    [[nodiscard]] bool is_continued() const {
        if (size() < known) return false;
        const std::size_t count = std::min(known, kHeld);
        return std::equal(held.end() - count, held.end(), items() + known - count,
                          [](const nb::object& one, PyObject* other) { return one.ptr() == other; });
    }

    /// The next one is known.
    void hold(std::size_t index) {
        std::move(held.begin() + 1, held.end(), held.begin());
        held.back() = nb::borrow(items()[index]);
    }

    [[nodiscard]] std::size_t size() const { return static_cast<std::size_t>(PyList_GET_SIZE(list.ptr())); }
    [[nodiscard]] PyObject** items() const { return reinterpret_cast<PyListObject*>(list.ptr())->ob_item; }
};
static_assert(sizeof(Followed) == 64);

/// A batch together with the output lists of its rows.
class ListBatch {
  public:
    ListBatch(std::uint32_t vocabulary, std::size_t capacity, unsigned threads, std::uintptr_t memory)
        : batch(vocabulary, capacity, threads, reinterpret_cast<std::uint32_t*>(memory)), followed_(capacity) {}

    void put(std::size_t row, Prepared* prepared, nb::list output) {
        forget(row);
        if (prepared == nullptr) {
            batch.remove(row);
        } else if (const auto place = batch.put(row, std::move(prepared->machine), std::move(prepared->ends))) {
            followed_[*place].list = std::move(output);
        }
    }

    void remove(std::size_t row) {
        forget(row);
        batch.remove(row);
    }

    void move(std::size_t from, std::size_t to) {
        if (from != to) forget(to);
        batch.move(from, to);
    }

    /// Reads the lists. Whether every token in them is known.
    bool read() {
        bool is_known = true;
        // What a row needs is spread over the memory, and where it lies is said by what has to be fetched itself.
        in_stages(
            batch.used_places(),
            [&](std::size_t place) {
                if (!is_followed(place)) return;
                __builtin_prefetch(followed_[place].list.ptr());
                batch.prefetch(place);
            },
            [&](std::size_t place) {
                if (is_followed(place)) __builtin_prefetch(followed_[place].items() + followed_[place].known);
            },
            [&](std::size_t place) {
                if (!is_followed(place)) return;
                const Followed& followed = followed_[place];
                if (followed.size() > followed.known) __builtin_prefetch(followed.items()[followed.known], 1);
                // Is let go for the new one.
                __builtin_prefetch(followed.held.front().ptr(), 1);
                batch.prefetch_machine(place);
            },
            [&](std::size_t place) {
                if (is_followed(place)) is_known &= read_list(place);
            });
        return is_known;
    }

    Batch batch;

  private:
    /// An engine changes a list at its end only, or gives another one. Where one of the last objects is another, so far
    /// back is looked for a change; where there is one, all before it is looked at too.
    static constexpr std::size_t kWindow = 64;

    void forget(std::size_t row) {
        if (const auto place = batch.place_of(row)) followed_[*place] = {};
    }

    [[nodiscard]] bool is_followed(std::size_t place) const { return followed_[place].list.is_valid(); }

    bool read_list(std::size_t place) {
        Followed& followed = followed_[place];
        if (!followed.is_continued()) {
            const std::size_t kept = common_start(followed, batch.output(place));
            batch.cut(place, kept);
            for (followed.known = kept - std::min(kept, Followed::kHeld); followed.known < kept; ++followed.known)
                followed.hold(followed.known);
        }
        for (; followed.known < followed.size(); ++followed.known) {
            const auto token = token_at(followed.list.ptr(), static_cast<Py_ssize_t>(followed.known));
            if (!token) return false;
            batch.append(place, *token);
            followed.hold(followed.known);
        }
        return true;
    }

    /// How many tokens at the start of the list are those that are known.
    static std::size_t common_start(const Followed& followed, std::span<const Token> known) {
        const std::size_t common = std::min(followed.size(), known.size());
        const auto first_change = [&](std::size_t begin) {
            while (begin < common && token_at(followed.list.ptr(), static_cast<Py_ssize_t>(begin)) == known[begin]) ++begin;
            return begin;
        };
        const std::size_t first = first_change(common - std::min(common, kWindow));
        return first < common ? first_change(0) : common;
    }

    std::vector<Followed> followed_;
};

Element element_of(const std::string& name) {
    if (name == "float32") return Element::float32;
    if (name == "bfloat16") return Element::bfloat16;
    if (name == "float16") return Element::float16;
    throw nb::value_error("logits must be float32, bfloat16 or float16");
}

nb::bytes mask_of(const ListBatch& self, std::size_t row) {
    const auto place = self.batch.place_of(row);
    if (!place) return nb::bytes("", 0);
    const auto words = self.batch.mask(*place);
    return nb::bytes(words.data(), words.size_bytes());
}

void add_entries(CatalogBuilder& builder, const nb::list& entries) {
    std::vector<Token> tokens;
    for (const nb::handle entry : entries) {
        if (!PyList_Check(entry.ptr())) throw nb::type_error("entries are lists of token ids");
        tokens.clear();
        for (Py_ssize_t index = 0; index < PyList_GET_SIZE(entry.ptr()); ++index) {
            const auto token = token_at(entry.ptr(), index);
            tokens.push_back(token.value_or(~Token{0}));
        }
        builder.add(tokens);
    }
}

/// Entries that are each followed by the token `end`. Returns how many of them were added: all, or those before the first
/// one that has no tokens or too many.
std::size_t add_joined(CatalogBuilder& builder, const nb::list& joined, Token end) {
    std::vector<Token> tokens;
    std::size_t added = 0;
    for (Py_ssize_t index = 0; index < PyList_GET_SIZE(joined.ptr()); ++index) {
        const Token token = token_at(joined.ptr(), index).value_or(~Token{0});
        if (token != end) {
            tokens.push_back(token);
            continue;
        }
        if (tokens.empty() || tokens.size() > CatalogBuilder::kLongestEntry) break;
        builder.add(tokens);
        tokens.clear();
        ++added;
    }
    return added;
}

}  // namespace

}  // namespace constraints

NB_MODULE(_native, module) {
    using namespace constraints;
    module.doc() = "The native part of logits_processors: catalogues, machines, masks and the threads that compute them.";

    // An engine keeps its processor until its process ends; that is no leak to report to its users.
    nb::set_leak_warnings(false);

    nb::exception<ArgumentError>(module, "ArgumentError", PyExc_ValueError);
    nb::exception<CatalogError>(module, "CatalogError", PyExc_ValueError);

    nb::class_<Catalog>(module, "Catalog")
        .def(nb::init<const std::string&>(), nb::arg("path"))
        .def_prop_ro("entries", [](const Catalog& self) { return self.header().entries; })
        .def_prop_ro("vocabulary", [](const Catalog& self) { return self.header().vocabulary; })
        .def_prop_ro("size", [](const Catalog& self) { return self.header().file_size; })
        .def_prop_ro("fingerprint", [](const Catalog& self) { return bytes_of(self.header().fingerprint); })
        .def("__contains__", [](const Catalog& self, const std::vector<Token>& tokens) { return self.contains(tokens); })
        .def("continues_with", &Catalog::continues_with, nb::arg("token"));

    module.attr("LONGEST_ENTRY") = CatalogBuilder::kLongestEntry;
    nb::class_<CatalogBuilder>(module, "CatalogBuilder")
        .def("__init__",
             [](CatalogBuilder* self, std::uint32_t vocabulary, const nb::bytes& fingerprint) {
                 new (self) CatalogBuilder(vocabulary, fingerprint_of(fingerprint));
             },
             nb::arg("vocabulary"), nb::arg("fingerprint"))
        .def("add", &add_entries, nb::arg("entries"))
        .def("add_joined", &add_joined, nb::arg("tokens"), nb::arg("end"))
        .def("write", &CatalogBuilder::write, nb::arg("path"), nb::call_guard<nb::gil_scoped_release>());

    nb::class_<Prepared>(module, "Machine");
    module.def("only_end", [](std::vector<Token> ends) { return Prepared{std::make_unique<OnlyEnd>(), std::move(ends)}; },
               nb::arg("ends"));

    nb::class_<Constraints>(module, "Constraints")
        .def(nb::init<std::optional<std::string>, const nb::bytes&, nb::callable>(), nb::arg("folder").none(),
             nb::arg("fingerprint"), nb::arg("encode"))
        .def("make", &Constraints::make, nb::arg("constraints"), nb::arg("ends"));

    nb::class_<ListBatch>(module, "Batch")
        .def(nb::init<std::uint32_t, std::size_t, unsigned, std::uintptr_t>(), nb::arg("vocabulary"), nb::arg("capacity"),
             nb::arg("threads"), nb::arg("memory") = 0)
        .def_static("memory_words", &Batch::memory_words, nb::arg("vocabulary"), nb::arg("capacity"))
        .def("put", &ListBatch::put, nb::arg("row"), nb::arg("machine").none(), nb::arg("output"))
        .def("remove", &ListBatch::remove, nb::arg("row"))
        .def("move", &ListBatch::move, nb::arg("source"), nb::arg("target"))
        .def("swap", [](ListBatch& self, std::size_t one, std::size_t other) { self.batch.swap(one, other); },
             nb::arg("one"), nb::arg("other"))
        .def("read", &ListBatch::read)
        .def("start", [](ListBatch& self) { self.batch.start(); })
        .def("finish", [](ListBatch& self) { self.batch.finish(); }, nb::call_guard<nb::gil_scoped_release>())
        .def("apply",
             [](ListBatch& self, std::uintptr_t data, std::ptrdiff_t row_stride, std::size_t rows, std::uint32_t columns,
                const std::string& element) {
                 const Logits logits{reinterpret_cast<void*>(data), row_stride, rows, columns, element_of(element)};
                 const nb::gil_scoped_release released;
                 self.batch.apply(logits);
             },
             nb::arg("data"), nb::arg("row_stride"), nb::arg("rows"), nb::arg("columns"), nb::arg("element"))
        .def("mask", &mask_of, nb::arg("row"))
        .def_prop_ro("constrained", [](const ListBatch& self) { return self.batch.constrained().size(); })
        .def_prop_ro("used_places", [](const ListBatch& self) { return self.batch.used_places(); })
        .def_prop_ro("used_words", [](const ListBatch& self) { return self.batch.used_words(); })
        .def_prop_ro("masks_begin", [](const ListBatch& self) { return self.batch.masks_begin(); })
        .def_prop_ro("stride", [](const ListBatch& self) { return self.batch.stride(); })
        .def_prop_ro("vocabulary", [](const ListBatch& self) { return self.batch.vocabulary(); })
        .def_prop_ro("threads", [](const ListBatch& self) { return self.batch.threads(); })
        .def_prop_ro("dead_ends", [](const ListBatch& self) { return self.batch.dead_ends(); });
}
