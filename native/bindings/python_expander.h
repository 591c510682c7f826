// Expands chunks by a Python object, such as one that gathers shares from other processes.
#pragma once

#include <nanobind/nanobind.h>

#include <exception>
#include <memory>
#include <string>

#include "weights/expander.h"

namespace vramkit {

// Its methods are those of vramkit.weights.gather.Gather: expand(StagedChunk) and
// give_up(group, why).
class PythonExpander final : public weights::Expander {
  public:
    explicit PythonExpander(nanobind::object object);
    bool expand(const weights::StagedChunk& staged, Failure& why) override;
    void give_up(const std::string& group, const Failure& why) override;
    // Throws what the object has raised since the last time; also where the streamer goes on
    // without it, as after a prefetch that failed. With the GIL.
    void rethrow();

  private:
    // False: it raised, or Python exits.
    template <typename Call>
    bool calls(const Call& call);

    const std::shared_ptr<PyObject> object_;
    std::exception_ptr raised_;  // with the GIL
};

// The class StagedChunk of Python.
void bind_staged_chunk(nanobind::module_& module);

}  // namespace vramkit
