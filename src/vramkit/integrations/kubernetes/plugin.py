"""The calls of the kubelet: which units there are, which to take, and what a container gets."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

import grpc

from vramkit.cluster.cards import Card
from vramkit.integrations.kubernetes.api import MESSAGES
from vramkit.integrations.kubernetes.units import Unit, UnitError, amount, prefer

logger = logging.getLogger(__name__)

HEALTHY, UNHEALTHY = "Healthy", "Unhealthy"
# A stream whose kubelet has gone is noticed after so long.
LOOK_SECONDS = 1.0

Inject = Callable[[Card, int], tuple[dict[str, str], list[str]]]
"""Variables and qualified CDI names for a container with so many bytes of a card. May raise OSError
or SettingError."""


class DevicePlugin:
    """The service v1beta1.DevicePlugin; its methods are called by threads of gRPC."""

    def __init__(self, unit: Unit, inject: Inject) -> None:
        self.unit = unit
        self._inject = inject
        self._cards: dict[str, Card] = {}
        self._healthy: frozenset[str] = frozenset()
        self._version = 0
        self._changed = threading.Condition()
        self._generation = 0
        """Of the server: streams of an earlier one end, and do not count."""
        self._streams = 0
        self._lost = False

    def update(self, cards: Sequence[Card], healthy: Collection[str]) -> None:
        """A card that is not among them any more stays, unhealthy: pods may still have it.

        Raises UnitError.
        """
        with self._changed:
            known = self._cards | {card.uuid: card for card in cards}
            now = frozenset(healthy)
            if known == self._cards and now == self._healthy:
                return
            self.unit.must_be_listable(known.values())
            for uuid in known:
                if (uuid in now) != (uuid in self._healthy):
                    logger.info("%s is %s", uuid, HEALTHY if uuid in now else UNHEALTHY)
            self._cards, self._healthy = known, now
            self._version += 1
            self._changed.notify_all()

    def end_streams(self) -> None:
        with self._changed:
            self._generation += 1
            self._streams, self._lost = 0, False
            self._changed.notify_all()

    def stream_was_lost(self) -> bool:
        """The kubelet has ended its only stream: to it all units are unhealthy, and it opens no
        other one until the plugin registers again."""
        with self._changed:
            return self._lost

    def GetDevicePluginOptions(self, request: Any, context: Any) -> Any:
        return MESSAGES["DevicePluginOptions"](get_preferred_allocation_available=True)

    def ListAndWatch(self, request: Any, context: Any) -> Iterator[Any]:
        with self._changed:
            generation = self._generation
            self._streams, self._lost = self._streams + 1, False
        try:
            yield from self._lists(context, generation)
        finally:
            with self._changed:
                if generation == self._generation:
                    self._streams -= 1
                    self._lost = self._streams == 0

    def _lists(self, context: Any, generation: int) -> Iterator[Any]:
        """One at first, and one for each change."""
        told = -1
        while context.is_active():
            with self._changed:
                self._changed.wait_for(
                    lambda: generation != self._generation or self._version != told,  # noqa: B023
                    LOOK_SECONDS,
                )
                if generation != self._generation:
                    return
                if self._version == told:
                    continue
                told, answer = self._version, self._list()
            yield answer

    def _list(self) -> Any:
        device = MESSAGES["Device"]
        return MESSAGES["ListAndWatchResponse"](
            devices=[
                device(ID=identity, health=HEALTHY if uuid in self._healthy else UNHEALTHY)
                for uuid, card in self._cards.items()
                for identity in self.unit.ids(card)
            ]
        )

    def GetPreferredAllocation(self, request: Any, context: Any) -> Any:
        try:
            chosen = [
                prefer(each.available_deviceIDs, each.must_include_deviceIDs, each.allocation_size)
                for each in request.container_requests
            ]
        except UnitError as error:
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(error))
        made = MESSAGES["ContainerPreferredAllocationResponse"]
        return MESSAGES["PreferredAllocationResponse"](
            container_responses=[made(deviceIDs=ids) for ids in chosen]
        )

    def Allocate(self, request: Any, context: Any) -> Any:
        """What fails here is shown as the reason why the pod was not admitted."""
        with self._changed:
            cards, healthy = list(self._cards.values()), self._healthy
        answers = []
        for each in request.container_requests:
            try:
                card, nbytes = amount(each.devices_ids, self.unit, cards)
                if card.uuid not in healthy:
                    raise UnitError(f"{card.uuid} takes no container now: it or the daemon is gone")
                variables, names = self._inject(card, nbytes)
            except UnitError as error:
                logger.warning("refused: %s", error)
                context.abort(grpc.StatusCode.INVALID_ARGUMENT, f"vramkit: {error}")
            except (OSError, ValueError) as error:
                logger.error("nothing can be put into a container: %s", error)
                context.abort(grpc.StatusCode.INTERNAL, f"vramkit: {error}")
            logger.info("%d bytes of %s for a container", nbytes, card.uuid)
            device = MESSAGES["CDIDevice"]
            answers.append(
                MESSAGES["ContainerAllocateResponse"](
                    envs=variables, cdi_devices=[device(name=name) for name in names]
                )
            )
        return MESSAGES["AllocateResponse"](container_responses=answers)

    def PreStartContainer(self, request: Any, context: Any) -> Any:
        return MESSAGES["PreStartContainerResponse"]()
