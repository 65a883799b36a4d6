// What Python sees of the C++: conversions, no logic. Nothing here is called from the relay's own thread, which never
// touches the interpreter.

#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/vector.h>

#include "relay.hpp"

namespace nb = nanobind;

namespace {

std::string text_of(const nb::bytes& bytes) { return {bytes.c_str(), bytes.size()}; }

nb::bytes bytes_of(const std::string& text) { return nb::bytes(text.data(), text.size()); }

}  // namespace

NB_MODULE(_native, module) {
    using relay::Outcome;
    using relay::Relay;
    using relay::Stream;

    nb::register_exception_translator([](const std::exception_ptr& pointer, void*) {
        try {
            std::rethrow_exception(pointer);
        } catch (const std::system_error& error) {
            errno = error.code().value();
            PyErr_SetFromErrno(PyExc_OSError);
        }
    });

    nb::class_<Outcome>(module, "Outcome")
        .def_prop_ro("rest", [](const Outcome& self) { return bytes_of(self.rest); })
        .def_prop_ro("unsent", [](const Outcome& self) { return bytes_of(self.unsent); })
        .def_prop_ro("tokens", [](const Outcome& self) { return self.counts.answer; })
        .def_prop_ro("prompt_tokens", [](const Outcome& self) { return self.counts.prompt; })
        .def_ro("tally", &Outcome::tally)
        .def_ro("gap_sum", &Outcome::gap_sum)
        .def_ro("last", &Outcome::last);

    nb::class_<Stream>(module, "Stream")
        .def_ro("number", &Stream::number)
        .def_prop_ro("tokens", [](const Stream& self) { return self.tokens.load(std::memory_order_relaxed); })
        .def_prop_ro("is_held", [](const Stream& self) { return self.is_held.load(); });

    nb::class_<Relay>(module, "Relay")
        .def(nb::init<std::vector<double>>(), nb::arg("bounds"))
        .def("fileno", &Relay::ended_descriptor)
        .def(
            "start",
            [](Relay& self, int upstream, int client, const nb::bytes& prefix, const nb::bytes& suffix, double last) {
                return self.start(upstream, client, {text_of(prefix), text_of(suffix)}, last);
            },
            nb::arg("upstream"), nb::arg("client"), nb::arg("prefix"), nb::arg("suffix"), nb::arg("last"))
        .def("stop", &Relay::stop, nb::arg("stream"))
        .def("ended", &Relay::ended)
        .def("close", &Relay::close);
}
