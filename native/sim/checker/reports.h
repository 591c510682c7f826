// Reports of the checker as text.
#pragma once

#include "base/json.h"
#include "sim/machine/machine.h"

namespace vramkit::sim {

void write_settings(Json& json, const Settings& settings);
void write_reports(Json& json, const Machine& machine);
void write_unsupported(Json& json, const Machine& machine);
// The document that `vramkit check` reads, at the path of the settings with the process id and the
// number of the reset behind.
void write_report_file(const Machine& machine, std::uint64_t generation);
// Why reports cannot be written to that path; empty where they can.
std::string refuse_report_path(const std::string& path);

}  // namespace vramkit::sim
