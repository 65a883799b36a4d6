// What Python sees of the C++: the conversions between Python's objects and the types of the other files, no logic.

#include <nanobind/nanobind.h>

namespace nb = nanobind;

NB_MODULE(_native, module) { module.doc() = "The native part of logits_processors."; }
