// For classes whose objects own something of the driver.
#pragma once

#include <nanobind/nanobind.h>

#include <string>

namespace vramkit {

// copy.copy(), copy.deepcopy() and pickle end here: a second owner would free what the first uses.
template <typename Class>
void refuse_copies(Class& owner) {
    namespace nb = nanobind;
    owner.def(
        "__reduce_ex__",
        [](nb::handle self, nb::handle) {
            const std::string name = nb::str(self.type().attr("__name__")).c_str();
            const std::string text = "a " + name +
                                     " can be neither copied nor pickled: it owns what the driver "
                                     "made for it; pass the object itself";
            throw nb::type_error(text.c_str());
        },
        nb::arg("protocol"),
        nb::sig("def __reduce_ex__(self, protocol: typing.SupportsIndex) -> typing.NoReturn"));
}

}  // namespace vramkit
