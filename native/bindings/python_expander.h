// Expands chunks by a Python function, such as one that gathers shares from other processes.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <string>

#include "weights/expander.h"

namespace vramkit {

// The function is called as expand(group, first_byte, bytes, staged, stored, place, stream): the
// name of the group, where the chunk lies in it, the address and bytes in staging memory, the
// address of the group's place, and the handle of the stream.
class PythonExpander final : public weights::Expander {
  public:
    explicit PythonExpander(nanobind::callable function);
    bool expand(const std::string& group, const weights::Chunk& chunk, CUdeviceptr staged,
                CUdeviceptr place, CUstream stream, Failure& why) override;
    // Throws what the function has raised since the last time; also where the streamer goes on
    // without it, as after a prefetch that failed. With the GIL.
    void rethrow();

  private:
    const std::shared_ptr<PyObject> function_;
    std::exception_ptr raised_;  // with the GIL
};

}  // namespace vramkit
