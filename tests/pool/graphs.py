"""Captures and graphs of the open driver, which vramkit itself does not make."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

from sim.raw_calls import RawCalls

from vramkit.driver import Driver, Stream

GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
MODES = {"global": GLOBAL, "thread local": THREAD_LOCAL, "relaxed": RELAXED}

INVALIDATED = 901


class Graph:
    """What a capture made, and an executable of it; both are destroyed by close()."""

    def __init__(self, raw: RawCalls) -> None:
        self._raw = raw
        self._graph: ctypes.c_void_p | None = None
        self._executable: ctypes.c_void_p | None = None

    def took(self, graph: ctypes.c_void_p) -> None:
        """The capture has ended."""
        self._graph, self._executable = graph, ctypes.c_void_p()
        place = ctypes.byref(self._executable)
        self._raw.call("cuGraphInstantiateWithFlags", place, graph, ctypes.c_uint64(0))

    def nodes(self) -> int:
        count = ctypes.c_size_t()
        self._raw.call("cuGraphGetNodes", self._graph, None, ctypes.byref(count))
        return count.value

    def launch(self, stream: Stream) -> None:
        assert self._executable is not None
        self._raw.launch(self._executable, stream)

    def drop_graph(self) -> None:
        if self._graph is not None:
            self._raw.call("cuGraphDestroy", self._graph)
            self._graph = None

    def drop_executable(self) -> None:
        if self._executable is not None:
            self._raw.destroy(self._executable)
            self._executable = None

    def close(self) -> None:
        self.drop_graph()
        self.drop_executable()


class Graphs:
    """Makes captures, and destroys what is left of them in the end."""

    def __init__(self, driver: Driver) -> None:
        self._raw = RawCalls(driver)
        self._library = ctypes.CDLL(driver.path)
        self._made: list[Graph] = []

    def begin(self, stream: Stream, mode: int = GLOBAL) -> None:
        handle = ctypes.c_void_p(stream.handle)
        self._raw.call("cuStreamBeginCapture_v2", handle, ctypes.c_int(mode))

    def end(self, stream: Stream, graph: Graph | None = None) -> int:
        """The driver's answer. The graph is told where there is one."""
        handle, place = ctypes.c_void_p(stream.handle), ctypes.c_void_p()
        answer: int = self._library.cuStreamEndCapture(handle, ctypes.byref(place))
        if answer == 0 and graph is not None:
            graph.took(place)
        return answer

    @contextmanager
    def capture(self, stream: Stream, mode: int = GLOBAL) -> Iterator[Graph]:
        """What is issued on the stream inside the block becomes the graph."""
        graph = Graph(self._raw)
        self._made.append(graph)
        self.begin(stream, mode)
        try:
            yield graph
        except BaseException:
            self.end(stream, graph)
            raise
        answer = self.end(stream, graph)
        assert answer == 0, f"the capture broke: {answer}"

    def break_capture(self, stream: Stream) -> None:
        """By a wait for a stream that is being captured, which is not allowed."""
        assert self._library.cuStreamSynchronize(ctypes.c_void_p(stream.handle)) != 0

    def close(self) -> None:
        for graph in self._made:
            graph.close()
