// What the gate answers itself: where there is no driver, and for calls that the driver lacks.
#pragma once

#include "gate/slots.h"

namespace vramkit::gate {

// As a driver without a card: cuInit says so, and other calls that it was not successful.
void* answer_without_driver(Export name);

// CUDA_ERROR_NOT_SUPPORTED. Without the gate dlsym would have said that there is no such name.
void* answer_for_missing_call();

}  // namespace vramkit::gate
