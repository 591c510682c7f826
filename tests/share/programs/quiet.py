"""A Python program that has so many MiB on the card, works once and says so, and then:

says_idle  works about three times a second, and says each time that it is idle
leased     is quiet within a lease until a signal (SIGUSR1), and without one after it
quiet      is quiet
"""

import signal
import sys
import threading

import vramkit

signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGUSR1])
kind, mebibytes = sys.argv[1], int(sys.argv[2])
device = vramkit.driver.open().device()
stream, memory = device.stream(), device.alloc(mebibytes << 20)


def work() -> None:
    device.kernels.fill(memory.address, (mebibytes << 20) // 4, 1, stream=stream)
    stream.synchronize()


def say(*words: object) -> None:
    print(*words, flush=True)


work()
if kind == "says_idle":
    say("idle", vramkit.share.idle())
    pause = threading.Event()
    while not pause.wait(0.35):  # less than it takes to be found idle
        work()
        vramkit.share.idle()
if kind == "leased":
    with vramkit.share.lease() as known:
        work()
        say("leased", known, vramkit.share.idle())
        signal.sigwait([signal.SIGUSR1])
    say("ended")
if kind == "quiet":
    say("quiet")
signal.pause()
