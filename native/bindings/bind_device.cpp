// Binds the device: what it is, and calls on its context as a whole.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>

#include <array>
#include <utility>

#include "bindings/arguments.h"
#include "bindings/attributes.h"
#include "bindings/bind.h"
#include "bindings/device.h"
#include "bindings/errors.h"
#include "bindings/invoke.h"
#include "bindings/owner.h"
#include "bindings/wait.h"

namespace nb = nanobind;

namespace vramkit {
namespace {

CUdevice find_device(const Session& session, int ordinal) {
    CUdevice handle = 0;
    VRAMKIT_ASK(session, cuDeviceGet, &handle, ordinal);
    return handle;
}

std::string name(const Device& device) {
    std::array<char, 256> text{};
    VRAMKIT_ASK(device.session(), cuDeviceGetName, text.data(), static_cast<int>(text.size()),
                device.handle());
    return text.data();
}

// "GPU-" and the form that nvidia-smi prints.
std::string uuid(const Device& device) {
    CUuuid id{};
    VRAMKIT_ASK(device.session(), cuDeviceGetUuid_v2, &id, device.handle());
    constexpr const char* kDigits = "0123456789abcdef";
    std::string text = "GPU-";
    for (int index = 0; index < 16; ++index) {
        if (index == 4 || index == 6 || index == 8 || index == 10) text += '-';
        const auto byte = static_cast<unsigned char>(id.bytes[index]);
        text += kDigits[byte >> 4];
        text += kDigits[byte & 15];
    }
    return text;
}

std::string pci_bus_id(const Device& device) {
    std::array<char, 32> text{};
    VRAMKIT_ASK(device.session(), cuDeviceGetPCIBusId, text.data(), static_cast<int>(text.size()),
                device.handle());
    return text.data();
}

size_t total_memory(const Device& device) {
    size_t bytes = 0;
    VRAMKIT_ASK(device.session(), cuDeviceTotalMem_v2, &bytes, device.handle());
    return bytes;
}

int attribute(const Device& device, int which) {
    int value = 0;
    VRAMKIT_ASK(device.session(), cuDeviceGetAttribute, &value,
                static_cast<CUdevice_attribute>(which), device.handle());
    return value;
}

void synchronize(Device& device) { VRAMKIT_INVOKE_WAITING(device, cuCtxSynchronize); }

void make(Device* self, std::shared_ptr<Session> session, int ordinal, CUdevice handle) {
    new (self) Device(std::move(session), ordinal, handle);
}

std::pair<size_t, size_t> memory_info(Device& device) {
    size_t free = 0;
    size_t total = 0;
    VRAMKIT_INVOKE(device, cuMemGetInfo_v2, &free, &total);
    return {free, total};
}

std::pair<int, int> priority_range(Device& device) {
    int least = 0;
    int greatest = 0;
    VRAMKIT_INVOKE(device, cuCtxGetStreamPriorityRange, &least, &greatest);
    return {least, greatest};
}

nb::dict device_attributes() {
    nb::dict names;
    for (const AttributeName& attribute : kDeviceAttributes) {
        names[nb::str(attribute.name.data(), attribute.name.size())] =
            static_cast<int>(attribute.value);
    }
    return names;
}

}  // namespace

void bind_device(nb::module_& module) {
    nb::class_<Device> device(module, "Device", "One GPU and its primary context.");
    def(device, "__init__", &make, nb::arg("session"), nb::arg("ordinal"), nb::arg("handle"));
    device.def_prop_ro("ordinal", &Device::ordinal)
        .def_prop_ro(
            "epoch", [](const Device& self) { return self.session().epoch(); },
            "How often the simulated GPU was reset; objects of an earlier epoch are gone.")
        .def_prop_ro(
            "forked", [](const Device& self) { return self.session().forked(); },
            "True in a forked child of the process that opened the driver: nothing works there.")
        .def_prop_ro("name", &name)
        .def_prop_ro("uuid", &uuid)
        .def_prop_ro("pci_bus_id", &pci_bus_id)
        .def_prop_ro("total_memory", &total_memory, "Bytes.")
        .def_prop_ro("priority_range", &priority_range,
                     "Least and greatest priority of a stream; lower numbers come first.")
        .def("synchronize", &synchronize,
             "Wait until everything issued to the device's primary context has finished.");
    refuse_copies(device);
    def(module, "find_device", &find_device, nb::arg("session"), nb::arg("ordinal"),
        "The driver's handle of a device.");
    def(module, "device_attribute", &attribute, nb::arg("device"), nb::arg("which"));
    module.def("device_attributes", &device_attributes,
               nb::sig("def device_attributes() -> dict[str, int]"),
               "Number of each attribute that has a name here.");
    def(module, "memory_info", &memory_info, nb::arg("device"), "Free and total bytes.");
}

}  // namespace vramkit
