// What Python sees of the C++: conversions, no logic. Nothing here is called from the relay's own thread, which never
// touches the interpreter.

#include <nanobind/nanobind.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/string_view.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <memory>
#include <optional>

#include "question.hpp"
#include "relay.hpp"
#include "request.hpp"
#include "response.hpp"
#include "telling.hpp"

namespace nb = nanobind;

namespace {

std::string_view view_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

std::string text_of(const nb::bytes& bytes) { return std::string(view_of(bytes)); }

nb::bytes bytes_of(std::string_view text) { return nb::bytes(text.data(), text.size()); }

/// None where it is no UTF-8.
nb::object text_of(const request::Message& message) {
    const auto decoded = [](std::string_view text) {
        PyObject* const found = PyUnicode_DecodeUTF8(text.data(), static_cast<Py_ssize_t>(text.size()), nullptr);
        if (found == nullptr) PyErr_Clear();
        return found == nullptr ? nb::none() : nb::steal(found);
    };
    return message.is_escaped ? decoded(request::unescaped(message.content)) : decoded(message.content);
}

/// (what stands around the messages, the messages as dicts), or None.
nb::object chat_of(std::string_view body) {
    request::Chat chat;
    if (!request::read_chat(body, chat)) return nb::none();
    static PyObject* const kRole = PyUnicode_InternFromString("role");
    static PyObject* const kContent = PyUnicode_InternFromString("content");
    nb::list messages;
    for (const request::Message& message : chat.messages) {
        const nb::object content = text_of(message);
        if (content.is_none()) return nb::none();
        nb::dict one;
        one[nb::handle(kRole)] = nb::str(message.role.data(), message.role.size());
        one[nb::handle(kContent)] = content;
        messages.append(one);
    }
    // JSON holds no NUL.
    std::string form(chat.before);
    form += '\0';
    form += chat.after;
    return nb::make_tuple(bytes_of(form), messages);
}

bool is_kept(std::string_view name, const std::optional<nb::tuple>& kept) {
    return !kept || std::any_of(kept->begin(), kept->end(), [name](nb::handle one) {
        const auto wanted = nb::cast<nb::bytes>(one);
        return name == view_of(wanted);
    });
}

nb::object request_of(
    const nb::bytes& bytes, const nb::bytes& path, std::size_t longest, const std::optional<nb::tuple>& kept) {
    request::Head head;
    switch (request::read_head(view_of(bytes), view_of(path), longest, head)) {
        case request::Verdict::kOther: return nb::bool_(false);
        case request::Verdict::kMore: return nb::bool_(true);
        case request::Verdict::kFound: break;
    }
    nb::list headers;
    for (const auto& [name, value] : head.headers)
        if (is_kept(name, kept)) headers.append(nb::make_tuple(bytes_of(name), bytes_of(value)));
    return nb::make_tuple(headers, bytes_of(head.body));
}

/// What nanobind makes of an object of Python's for a std::shared_ptr lets go of that object in whichever thread drops it:
/// the relay's would wait for the interpreter, and the interpreter for the stream that it is about to end.
struct SharedUpstreams {
    std::shared_ptr<relay::Upstreams> shared;
};

struct SharedTelling {
    std::shared_ptr<const relay::Telling> shared;
};

/// What is complete and was not taken yet; of a great many the first.
nb::list taken(response::Parser& parser, std::size_t most) {
    const std::size_t count = std::min(parser.events.size(), most);
    nb::list out;
    for (std::size_t i = 0; i < count; ++i) out.append(bytes_of(parser.events[i]));
    parser.events.erase(parser.events.begin(), parser.events.begin() + static_cast<std::ptrdiff_t>(count));
    return out;
}

}  // namespace

NB_MODULE(_native, module) {
    using relay::Outcome;
    using relay::Question;
    using relay::Relay;
    using relay::Stream;
    using relay::Telling;
    using relay::Upstreams;

    // What a process still holds when it ends is no leak, and nothing to tell its users of.
    nb::set_leak_warnings(false);

    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });

    module.def(
        "read_head", &request_of, nb::arg("data"), nb::arg("path"), nb::arg("longest"),
        nb::arg("kept").none() = nb::none());
    module.def(
        "read_chat", [](const nb::bytes& body) { return chat_of(view_of(body)); }, nb::arg("body"));

    nb::exception<response::ProtocolError>(module, "ProtocolError");
    using response::Parser;
    nb::class_<Parser>(module, "ResponseParser")
        .def(
            "__init__",
            [](Parser* self, std::size_t event, std::size_t head) { new (self) Parser({event, head}); },
            nb::arg("longest_event"), nb::arg("longest_head"))
        .def("feed", [](Parser& self, const nb::bytes& data) { self.feed(view_of(data)); }, nb::arg("data"))
        .def("eof", &Parser::eof)
        .def("take", &taken, nb::arg("most"))
        .def_ro("status", &Parser::status)
        .def_ro("done", &Parser::done)
        .def_ro("reusable", &Parser::reusable)
        .def_prop_ro("error_body", [](const Parser& self) { return bytes_of(self.error_body); })
        .def_prop_ro("has_events", [](const Parser& self) { return !self.events.empty(); })
        .def_prop_ro("is_between_chunks", &Parser::is_between_chunks);

    nb::class_<Outcome>(module, "Outcome")
        .def_prop_ro("rest", [](const Outcome& self) { return bytes_of(self.rest); })
        .def_prop_ro("unsent", [](const Outcome& self) { return bytes_of(self.unsent); })
        .def_prop_ro("tokens", [](const Outcome& self) { return self.counts.answer; })
        .def_prop_ro("prompt_tokens", [](const Outcome& self) { return self.counts.prompt; })
        .def_ro("tally", &Outcome::tally)
        .def_ro("gap_sum", &Outcome::gap_sum)
        .def_ro("last", &Outcome::last)
        .def(
            "take_socket", [](Outcome& self) { return self.socket == nullptr ? -1 : self.socket->release(); })
        .def_ro("has_head", &Outcome::has_head)
        .def_ro("is_begun", &Outcome::is_begun)
        .def_ro("is_finished", &Outcome::is_finished)
        .def_ro("connect_seconds", &Outcome::connect_seconds)
        .def_ro("head_at", &Outcome::head_at)
        .def_ro("first", &Outcome::first)
        .def_prop_ro("reason", [](const Outcome& self) { return nb::str(self.reason.data(), self.reason.size()); });

    nb::class_<Stream>(module, "Stream")
        .def_ro("number", &Stream::number)
        .def_prop_ro("tokens", [](const Stream& self) { return self.tokens.load(std::memory_order_relaxed); })
        .def_prop_ro("is_held", [](const Stream& self) { return self.is_held.load(); })
        .def_prop_ro("is_finished", [](const Stream& self) { return self.is_finished.load(); })
        .def_prop_ro("is_connecting", [](const Stream& self) { return self.is_connecting.load(); });

    nb::class_<SharedUpstreams>(module, "Upstreams")
        .def(
            "__init__",
            [](SharedUpstreams* self, const std::string& host, const std::string& port, std::size_t most) {
                new (self) SharedUpstreams{std::make_shared<Upstreams>(host, port, most)};
            },
            nb::arg("host"), nb::arg("port"), nb::arg("most"))
        .def(
            "close_idle", [](SharedUpstreams& self, double seconds) { return self.shared->close_idle(seconds); },
            nb::arg("seconds"))
        .def("close", [](SharedUpstreams& self) { self.shared->close(); });

    nb::class_<SharedTelling>(module, "Telling")
        .def(
            "__init__",
            [](SharedTelling* self, const nb::bytes& begin, const nb::bytes& before, const nb::bytes& after,
               const nb::bytes& finish_before, const nb::bytes& finish_after, const nb::bytes& usage_before,
               const nb::bytes& usage_after, const nb::bytes& end) {
                new (self) SharedTelling{std::make_shared<const Telling>(
                    Telling{text_of(begin), text_of(before), text_of(after), text_of(finish_before),
                            text_of(finish_after), text_of(usage_before), text_of(usage_after), text_of(end)})};
            },
            nb::arg("begin"), nb::arg("before"), nb::arg("after"), nb::arg("finish_before"), nb::arg("finish_after"),
            nb::arg("usage_before"), nb::arg("usage_after"), nb::arg("end"));

    nb::class_<Question>(module, "Question")
        .def(
            "__init__",
            [](Question* self, const nb::bytes& begin, const nb::bytes& middle, const nb::bytes& end) {
                new (self) Question{text_of(begin), text_of(middle), text_of(end)};
            },
            nb::arg("begin"), nb::arg("middle"), nb::arg("end"))
        .def(
            "request",
            [](const Question& self, const nb::bytes& head, const nb::bytes& headers, std::string_view id,
               std::string_view prompt) { return bytes_of(self.request(view_of(head), view_of(headers), id, prompt)); },
            nb::arg("head"), nb::arg("headers"), nb::arg("id"), nb::arg("prompt"));

    nb::class_<Relay>(module, "Relay")
        .def(nb::init<std::vector<double>>(), nb::arg("bounds"))
        .def("fileno", &Relay::ended_descriptor)
        .def(
            "start",
            [](Relay& self, int upstream, int client, const nb::bytes& prefix, const nb::bytes& suffix, double last) {
                return self.start(upstream, client, {text_of(prefix), text_of(suffix)}, last);
            },
            nb::arg("upstream"), nb::arg("client"), nb::arg("prefix"), nb::arg("suffix"), nb::arg("last"))
        .def(
            "ask",
            [](Relay& self, const SharedUpstreams& upstreams, const nb::bytes& request, int client,
               const nb::bytes& head, const nb::bytes& identity, const SharedTelling& telling) {
                return self.ask(
                    upstreams.shared, view_of(request), client,
                    {text_of(head), text_of(identity), telling.shared});
            },
            nb::arg("upstreams"), nb::arg("request"), nb::arg("client"), nb::arg("head"), nb::arg("identity"),
            nb::arg("telling"))
        .def_prop_ro("is_due", &Relay::is_due)
        .def("flush", &Relay::flush)
        .def("stop", &Relay::stop, nb::arg("stream"))
        .def("ended", &Relay::ended)
        .def("poll_fileno", &Relay::poll_descriptor)
        .def("poll", &Relay::poll)
        .def("close", &Relay::close);
}
