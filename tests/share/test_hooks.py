"""Whether each call that the driver exports is hooked, or forwarded for a reason.

A name that a newer driver adds to native/gate/exports.def is in neither list, and fails here.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

NATIVE = Path(__file__).parents[2] / "native"

# Patterns of names, without the suffixes of per-thread forms.
FORWARDED: dict[str, str] = {
    "asks, and changes nothing": """
        cuArray*GetDescriptor* cuArrayGet* cuCtxGet* cuDevResourceGenerateDesc cuDevSmResource*
        cuDeviceCanAccessPeer cuDeviceComputeCapability cuDeviceGet* cuDevicePrimaryCtxGetState
        cuDriverGetVersion cuEventElapsedTime* cuEventQuery cuFuncGet* cuFuncIsLoaded cuGetError*
        cuGetExportTable cuGraphDebugDotPrint cuGraphGet* cuGraph*NodeGet*
        cuGraphChildGraphNodeGetGraph cuGraphExecGetFlags cuGraphNodeFindInClone
        cuKernelGet* cuLibraryEnumerateKernels
        cuLibraryGet* cuMemGetAllocationGranularity cuMemGetAttribute* cuMemHostGetFlags
        cuMemPoolGetAccess cuMemRangeGetAttribute* cuMipmappedArrayGet* cuModuleEnumerateFunctions
        cuModuleGet* cuMulticastGetGranularity cuOccupancy* cuStreamGet* cuStreamIsCapturing
        cuStreamQuery cuSurfObjectGet* cuSurfRefGet* cuTexObjectGet* cuTexRefGet* cuGreenCtxGet*
        cuGLGetDevices* cuVDPAUGetDevice cuCoredumpGet* cuCheckpointProcessGet*""",
    "is the gate's own": "cuGetProcAddress*",
    "has 32 bits for addresses or sizes: programs of 64 bits are given its later version": """
        cuMemAlloc cuMemAllocPitch cuMemFree cuMemGetAddressRange cuMemGetInfo cuDeviceTotalMem
        cuMemcpy2D cuMemcpy2DAsync cuMemcpy2DUnaligned cuMemcpy3D cuMemcpy3DAsync cuMemcpyAtoA
        cuMemcpyAtoD cuMemcpyAtoH cuMemcpyAtoHAsync cuMemcpyDtoA cuMemcpyDtoD cuMemcpyDtoDAsync
        cuMemcpyDtoH cuMemcpyDtoHAsync cuMemcpyHtoA cuMemcpyHtoAAsync cuMemcpyHtoD
        cuMemcpyHtoDAsync cuMemsetD16 cuMemsetD2D16 cuMemsetD2D32 cuMemsetD2D8 cuMemsetD32
        cuMemsetD8 cuCtxCreate cuTexRefSetAddress cuTexRefSetAddress2D""",
    "is about memory of the host": """
        cuMemAllocHost* cuMemFreeHost cuMemHost* cuLaunchHostFunc cuStreamAddCallback""",
    "keeps addresses, which stay": """
        cuTensorMap* cuParamSet*""",
    "reads textures and surfaces, or is about those over arrays, which stay": """
        cuTexRefCreate cuTexRefDestroy cuTexRefSet[B-Z]* cuTexRefSetAddressMode cuTexRefSetArray
        cuTexObjectDestroy cuSurfRefSetArray cuSurfObjectCreate cuSurfObjectDestroy""",
    "stays on the card, as arrays, modules and their memory do": """
        cuArrayCreate* cuArray3DCreate* cuArrayDestroy cuMipmappedArrayCreate
        cuMipmappedArrayDestroy cuMemMapArrayAsync cuModuleLoad* cuModuleUnload cuLibraryLoad*
        cuLibraryUnload cuLink* cuFuncLoad""",
    "is about memory of graphs' own nodes, which stays on the card": """
        cuGraphAddMemAllocNode cuGraphAddMemFreeNode cuDeviceGetGraphMemAttribute
        cuDeviceGraphMemTrim cuDeviceSetGraphMemAttribute""",
    "builds graphs, and does not look at memory before they are instantiated or updated": """
        cuGraphAddChildGraphNode cuGraphAddDependencies* cuGraphAddEmptyNode cuGraphAddEvent*
        cuGraphAddExternal* cuGraphAddHostNode cuGraphClone cuGraphConditionalHandleCreate
        cuGraphCreate cuGraphDestroy* cuGraphEvent*SetEvent cuGraphExecChildGraph*
        cuGraphExecDestroy cuGraphExecEvent* cuGraphExecExternal* cuGraphExecHost*
        cuGraphExternal*SetParams cuGraphHostNodeSetParams cuGraphKernelNodeCopyAttributes
        cuGraphKernelNodeSetAttribute cuGraphNodeSetEnabled cuGraphReleaseUserObject
        cuGraphRemoveDependencies* cuGraphRetainUserObject cuUserObject*""",
    "orders streams and touches no memory": """
        cuEventCreate cuEventDestroy* cuEventRecord* cuStreamWaitEvent cuStreamCreate*
        cuStreamCopyAttributes cuStreamSetAttribute cuStreamUpdateCaptureDependencies*
        cuThreadExchangeStreamCaptureMode cuIpcGetEventHandle cuIpcOpenEventHandle
        cuCtxRecordEvent cuCtxWaitEvent cuFlushGPUDirectRDMAWrites""",
    "chooses or configures a context, and neither makes nor ends one": """
        cuInit cuCtxPushCurrent* cuCtxPopCurrent* cuCtxSet* cuCtxDisablePeerAccess
        cuCtxEnablePeerAccess cuCtxResetPersistingL2Cache cuDevicePrimaryCtxSetFlags*
        cuFuncSet* cuKernelSet* cuDeviceRegisterAsyncNotification
        cuDeviceUnregisterAsyncNotification""",
    "is of parts of the primary context, whose memory and whose waits are the primary's": """
        cuGreenCtx* cuCtxFromGreenCtx""",
    "is advice for managed memory": "cuMemAdvise* cuStreamAttachMemAsync",
    "is memory of another process or interface, which is theirs": """
        cuIpcOpenMemHandle* cuIpcCloseMemHandle cuMemImportFromShareableHandle
        cuMemPoolImport* cuMemPoolExport* cuImportExternal* cuExternalMemory* cuDestroyExternal*
        cuSignalExternal* cuWaitExternal* cuGraphics* cuGL* cuEGL* cuVDPAU*""",
    "is memory on several cards that cannot move; see docs/share-internals.md": "cuMulticast*",
    "is of the driver's default pools, which vramkit's stands in for": """
        cuDeviceGetDefaultMemPool cuDeviceGetMemPool cuMemGetDefaultMemPool cuMemGetMemPool""",
    "is for tools": """
        cudbg* cuProfiler* cuLogs* cuCoredumpSet* cuCheckpointProcess*""",
}  # fmt: skip


def exports() -> set[str]:
    text = (NATIVE / "gate" / "exports.def").read_text(encoding="utf-8")
    return set(re.findall(r"^VRAMKIT_EXPORT\((\w+)\)$", text, re.MULTILINE))


def hooked() -> set[str]:
    text = (NATIVE / "share" / "hooks.def").read_text(encoding="utf-8")
    row = r"^VRAMKIT_HOOK\(\w+, (\w+), \d+, (none|ptsz|ptds), "
    found = re.findall(row, text, re.MULTILINE)
    return {name for name, _ in found} | {f"{name}_{form}" for name, form in found}


def plain(name: str) -> str:
    return re.sub(r"_pt(?:sz|ds)$", "", name)


def forwarded(name: str) -> bool:
    patterns = " ".join(FORWARDED.values()).split()
    return any(fnmatchcase(plain(name), each) for each in patterns)


def test_every_export_is_hooked_or_forwarded_for_a_reason() -> None:
    judged_by_nobody = {name for name in exports() - hooked() if not forwarded(name)}
    assert not judged_by_nobody


def test_a_call_is_hooked_in_all_its_per_thread_forms() -> None:
    forms = {f"{name}_{form}" for name in hooked() for form in ("ptsz", "ptds")}
    assert not (forms & exports()) - hooked()


def test_no_pattern_is_without_a_call() -> None:
    left = {plain(name) for name in exports() - hooked()}
    patterns = " ".join(FORWARDED.values()).split()
    assert len(patterns) == len(set(patterns))
    idle = [each for each in patterns if not any(fnmatchcase(name, each) for name in left)]
    assert not idle


def test_calls_that_work_with_memory_are_not_among_those_that_ask() -> None:
    """The words by which such calls are known, in what is forwarded; each was looked at."""
    works = re.compile(
        r"Alloc|Free|Memcpy|Memset|Launch|Prefetch|Mem.*Create|Map|CtxCreate|Destroy"
    )
    asks = next(iter(FORWARDED)), "orders streams and touches no memory"
    for reason in asks:
        patterns = FORWARDED[reason].split()
        named = {
            name
            for name in map(plain, exports() - hooked())
            if any(fnmatchcase(name, each) for each in patterns) and works.search(name)
        }
        known = {name for name in named if "Get" in name or name.startswith("cuEventDestroy")}
        assert named == known
