// Says what was found, where both accesses were issued, and what would order them.
#include "sim/checker/reports.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <fstream>
#include <numeric>

#include "sim/machine/simulation.h"

namespace vramkit::sim {
namespace {

std::string_view kind_name(ReportKind kind) {
    switch (kind) {
        case ReportKind::race:
            return "race";
        case ReportKind::free_in_use:
            return "free_in_use";
        case ReportKind::use_after_free:
            return "use_after_free";
        case ReportKind::implicit_wait:
            return "implicit_wait";
        case ReportKind::out_of_bounds:
            return "out_of_bounds";
        case ReportKind::overlapping_copy:
            return "overlapping_copy";
        case ReportKind::deadlock:
            break;
    }
    return "deadlock";
}

std::string_view use_name(Use use) {
    switch (use) {
        case Use::read:
            return "read";
        case Use::write:
            return "write";
        case Use::atomic:
            return "atomic";
        case Use::alloc:
            return "alloc";
        case Use::free:
            break;
    }
    return "free";
}

std::string call_name(const Mark& mark) { return std::string(kCallNames[mark.site.call].symbol); }

std::string stream_name(const Mark& mark) {
    return mark.host ? "the host" : "stream " + std::to_string(mark.stream);
}

std::string advice(const Report& report) {
    const Mark& first = report.first;
    const Mark& second = report.second;
    const std::string after_first = "after " + call_name(first);
    switch (report.kind) {
        case ReportKind::race:
            if (second.host) {
                return "Wait for stream " + std::to_string(first.stream) +
                       " (cuStreamSynchronize), "
                       "or for an event recorded on it " +
                       after_first + " (cuEventSynchronize), before the host touches the memory.";
            }
            return "Record an event on " + stream_name(first) + " " + after_first + " and let " +
                   stream_name(second) + " wait for it (cuStreamWaitEvent) before " +
                   call_name(second) + ", or issue both on one stream.";
        case ReportKind::free_in_use:
            return "Wait for stream " + std::to_string(first.stream) +
                   ", or for an event recorded "
                   "on it " +
                   after_first + ", before " + call_name(second) + ".";
        case ReportKind::use_after_free:
            if (second.site.call == number(CallId::cuGraphLaunch)) {
                return "The graph uses memory that " + call_name(first) +
                       " gave back: free it after the last launch, or capture the graph again with "
                       "memory that is there.";
            }
            return "The block was given back by " + call_name(first) + " before " +
                   call_name(second) +
                   " was issued: free it after its last use, or allocate it again first.";
        case ReportKind::implicit_wait:
            return "It works today because the driver waits for running work in calls such as "
                   "cuMemFree; nothing promises it. Synchronise with stream " +
                   std::to_string(first.stream) + " " + after_first + ".";
        case ReportKind::out_of_bounds:
            return "The access leaves the block that " + call_name(first) +
                   " handed out, or lies in memory of the pool that is nobody's. Allocate as much "
                   "as "
                   "is used, or check the size that is passed to " +
                   call_name(second) + ".";
        case ReportKind::overlapping_copy:
            return "CUDA does not define what a copy onto its own source leaves there: copy by way "
                   "of other memory, or in parts that do not overlap.";
        case ReportKind::deadlock:
            break;
    }
    return "Nothing in this process ends the wait of " + stream_name(first) +
           ": write the value that " + call_name(first) + " waits for.";
}

// Thread, location and frames, as fields of an object that is open.
void write_call_site(Json& json, const Machine& machine, const Site& site) {
    json.field("thread", std::string_view(thread_name(site.thread)))
        .field("location", std::string_view(machine.call_sites.location(site.call_site)));
    json.key("frames").begin_array();
    for (const std::string_view frame : machine.call_sites.frames(site.call_site)) {
        json.value(frame);
    }
    json.end_array();
}

void write_site(Json& json, const Machine& machine, const Mark& mark) {
    json.begin_object().field("call", kCallNames[mark.site.call].symbol);
    if (mark.host) {
        json.key("stream").null();
    } else {
        json.field("stream", mark.stream);
    }
    json.field("access", use_name(mark.use));
    write_call_site(json, machine, mark.site);
    json.end_object();
}

// At the end of the process: what is open, and what was closed only by its end.
void write_left_open(Json& json, const Machine& machine) {
    LeftOpen all = machine.left_open;
    const auto add = [&](const Site& site, std::uint64_t bytes) { all.add(site, bytes); };
    machine.space().each_open(add);
    machine.pools.each_open(add);
    json.begin_array();
    for (const auto& [key, entry] : all.entries()) {
        json.begin_object()
            .field("call", kCallNames[entry.site.call].symbol)
            .field("nbytes", entry.bytes)
            .field("count", entry.count);
        write_call_site(json, machine, entry.site);
        json.end_object();
    }
    json.end_array();
}

}  // namespace

void write_settings(Json& json, const Settings& settings) {
    const auto& link = settings.profile.link;
    const auto& compute = settings.profile.compute;
    json.begin_object()
        .field("profile", std::string_view(settings.profile.name))
        .field("clock", settings.wall_clock ? "wall" : "virtual")
        .field("scale", settings.scale)
        .field("checker", settings.checker)
        .field("data", settings.data)
        .field("capacity", settings.capacity)
        .field("profile_memory", settings.profile.total_memory)
        .field("devices", settings.devices)
        .field("card", std::string_view(settings.card))
        .field("link_generation", settings.profile.link_generation)
        .field("link_width", settings.profile.link_width)
        .field("host_to_device_bytes_per_s", link.host_to_device_bytes_per_s)
        .field("device_to_host_bytes_per_s", link.device_to_host_bytes_per_s)
        .field("matmul_flops_per_s", compute.matmul_flops_per_s)
        .field("attention_flops_per_s", compute.attention_flops_per_s)
        .field("weights_bytes_per_s", compute.weights_bytes_per_s)
        .end_object();
}

void write_reports(Json& json, const Machine& machine) {
    json.begin_array();
    for (const Report& report : machine.checker.reports.reports()) {
        const bool warning = report.kind == ReportKind::implicit_wait;
        json.begin_object()
            .field("kind", kind_name(report.kind))
            .field("severity", warning ? "warning" : "error")
            .field("address", report.address)
            .field("nbytes", report.bytes)
            .key("first");
        write_site(json, machine, report.first);
        json.key("second");
        write_site(json, machine, report.second);
        json.field("advice", std::string_view(advice(report)))
            .field("count", report.count)
            .end_object();
    }
    json.end_array();
}

void write_unsupported(Json& json, const Machine& machine) {
    json.begin_array();
    for (const auto& [key, entry] : machine.unsupported.entries()) {
        const bool missing = key.first == Unsupported::Reason::missing;
        json.begin_object()
            .field("call", std::string_view(key.second))
            .field("reason", missing ? "missing" : "not_supported")
            .field("count", entry.count);
        write_call_site(json, machine, entry.site);
        json.end_object();
    }
    json.end_array();
}

std::string refuse_report_path(const std::string& path) {
    const std::string trial = path + "." + std::to_string(getpid()) + ".trial";
    const int file = open(trial.c_str(), O_CREAT | O_WRONLY | O_CLOEXEC, 0600);
    if (file < 0) {
        return "setting reports=" + path + ": cannot write there (" + std::strerror(errno) +
               "); give a path in a folder that exists and may be written";
    }
    close(file);
    unlink(trial.c_str());
    return "";
}

void write_report_file(const Machine& machine, std::uint64_t generation) {
    Json json;
    json.begin_object()
        .field("pid", static_cast<int>(getpid()))
        .field("program", program_invocation_name)
        .key("settings");
    write_settings(json, machine.settings);
    json.key("reports");
    write_reports(json, machine);
    json.field("left_out", machine.checker.reports.left_out()).key("unsupported");
    write_unsupported(json, machine);
    if (simulation().exiting) {
        json.key("left_open");
        write_left_open(json, machine);
    }
    json.field("calls",
               std::accumulate(machine.counts.begin(), machine.counts.end(), std::uint64_t{0}))
        .end_object();
    const std::string path = machine.settings.reports + "." + std::to_string(getpid()) + "." +
                             std::to_string(generation);
    std::ofstream file(path);
    file << json.text();
    file.close();
    if (!file) std::fprintf(stderr, "vramkit: cannot write reports to %s\n", path.c_str());
}

}  // namespace vramkit::sim
