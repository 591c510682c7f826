"""Driver calls that vramkit itself does not make, on the simulated GPU that it has open."""

from __future__ import annotations

import ctypes

from vramkit.driver import Driver, Stream


class RawCalls:
    """Stream-ordered memory and graphs of the open driver; every call must succeed."""

    def __init__(self, driver: Driver) -> None:
        self._library = ctypes.CDLL(driver.path)

    def call(self, symbol: str, *arguments: object) -> None:
        result = getattr(self._library, symbol)(*arguments)
        assert result == 0, f"{symbol}: {result}"

    def alloc(self, nbytes: int, stream: Stream | None) -> int:
        """By cuMemAllocAsync; without a stream by cuMemAlloc."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t(nbytes)
        if stream is None:
            self.call("cuMemAlloc_v2", ctypes.byref(address), size)
        else:
            handle = ctypes.c_void_p(stream.handle)
            self.call("cuMemAllocAsync", ctypes.byref(address), size, handle)
        return address.value

    def free(self, address: int, stream: Stream | None) -> None:
        """By cuMemFreeAsync; without a stream by cuMemFree."""
        if stream is None:
            self.call("cuMemFree_v2", ctypes.c_uint64(address))
        else:
            handle = ctypes.c_void_p(stream.handle)
            self.call("cuMemFreeAsync", ctypes.c_uint64(address), handle)

    def begin(self, stream: Stream) -> None:
        self.call("cuStreamBeginCapture_v2", ctypes.c_void_p(stream.handle), ctypes.c_int(2))

    def end(self, stream: Stream) -> ctypes.c_void_p:
        """Ends the capture; the graph, ready to be launched."""
        graph, executable = ctypes.c_void_p(), ctypes.c_void_p()
        handle = ctypes.c_void_p(stream.handle)
        self.call("cuStreamEndCapture", handle, ctypes.byref(graph))
        self.call(
            "cuGraphInstantiateWithFlags", ctypes.byref(executable), graph, ctypes.c_uint64(0)
        )
        self.call("cuGraphDestroy", graph)
        return executable

    def launch(self, executable: ctypes.c_void_p, stream: Stream) -> None:
        self.call("cuGraphLaunch", executable, ctypes.c_void_p(stream.handle))

    def destroy(self, executable: ctypes.c_void_p) -> None:
        self.call("cuGraphExecDestroy", executable)
